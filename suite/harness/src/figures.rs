//! Parses the figures in the programs' output: the two result lines of the pingpongs, perftest's
//! table and UCX's last line.
//!
//! The input is text for people. If a line is missing, the result is `None`, never a guess.

/// Microseconds per iteration and Mbit/s of a pingpong.
pub fn pingpong(output: &str) -> Option<(f64, f64)> {
    let rate = output.lines().find(|line| line.contains("Mbit/sec"))?;
    let time = output.lines().find(|line| line.contains("usec/iter"))?;
    Some((word_before(time, "usec/iter")?, word_before(rate, "Mbit/sec")?))
}

/// The value in one column of perftest's table, for example `perftest(output, "t_avg[usec]")`. If
/// there are several rows, the last row counts.
pub fn perftest(output: &str, column: &str) -> Option<f64> {
    let heading = output.lines().find(|line| line.trim_start().starts_with("#bytes"))?;
    let place = columns(heading).iter().position(|name| name == column)?;
    let rows = output.lines().skip_while(|line| *line != heading).skip(1);
    let row = rows.filter(|line| line.trim_start().starts_with(|first: char| first.is_ascii_digit())).last()?;
    row.split_whitespace().nth(place)?.parse().ok()
}

/// UCX's last line: the overall latency in microseconds and the overall bandwidth in MB/s (of 2^20
/// bytes).
pub fn ucx(output: &str) -> Option<(f64, f64)> {
    const LATENCY: usize = 3;
    const BANDWIDTH: usize = 5;
    let row = output.lines().rev().find(|line| line.trim_start().starts_with(|first: char| first.is_ascii_digit()))?;
    let words: Vec<&str> = row.split_whitespace().collect();
    Some((words.get(LATENCY)?.parse().ok()?, words.get(BANDWIDTH)?.parse().ok()?))
}

/// The median of an odd number of figures.
pub fn median(figures: &mut [f64]) -> Option<f64> {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied()
}

/// Splits the heading of perftest's table. Column names contain blanks ("BW average[MB/sec]"), so a
/// name ends at a unit or at two blanks.
fn columns(heading: &str) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    let mut open = false;
    for word in heading.split_whitespace() {
        match names.last_mut() {
            Some(name) if open => {
                name.push(' ');
                name.push_str(word);
            }
            _ => names.push(word.to_owned()),
        }
        open = matches!(word, "BW" | "CPU" | "tps" | "99%" | "99.9%") && !word.contains('[');
        if matches!(word, "99%" | "99.9%") {
            open = false;
        }
    }
    names
}

fn word_before(line: &str, unit: &str) -> Option<f64> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let place = words.iter().position(|word| *word == unit)?;
    words.get(place.checked_sub(1)?)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::{median, perftest, pingpong, ucx};

    #[test]
    fn the_two_sentences_of_a_pingpong() {
        let said = "8192000 bytes in 0.01 seconds = 5113.17 Mbit/sec\n1000 iters in 0.01 seconds = 12.82 usec/iter\n";
        assert_eq!(pingpong(said), Some((12.82, 5113.17)));
    }

    #[test]
    fn a_bandwidth_table() {
        let said = " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n \
                    65536      5000             17014.55            16998.01             0.271968\n---\n";
        assert_eq!(perftest(said, "BW average[MB/sec]"), Some(16998.01));
        assert_eq!(perftest(said, "MsgRate[Mpps]"), Some(0.271_968));
    }

    #[test]
    fn a_latency_table() {
        let said = " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   \
                    99% percentile[usec]   99.9% percentile[usec] \n \
                    8       1000          0.30           5.55         0.33     \t       0.34        \t0.10   \t\t0.45    \t\t5.55   \n";
        assert_eq!(perftest(said, "t_avg[usec]"), Some(0.34));
    }

    #[test]
    fn the_last_line_of_ucx() {
        assert_eq!(
            ucx(
                "                     1000000      0.115     0.112     0.113       68.37      68.38     8960896     8960896\n"
            ),
            Some((0.113, 68.38))
        );
    }

    #[test]
    fn the_median_of_five() {
        assert_eq!(median(&mut [5.0, 1.0, 3.0, 2.0, 4.0]), Some(3.0));
    }
}
