//! Formats text in columns, for people.
//!
//! The widths follow the content. The last column is never padded. The principal function is
//! [`columns`].

/// Formats rows as lines with columns under a heading.
pub(crate) fn columns(heading: &[&str], rows: &[Vec<String>]) -> String {
    let count = heading.len();
    let width = |column: usize| -> usize {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        cells.chain([heading[column].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..count).map(width).collect();
    let mut text = line(heading.iter().copied(), &widths);
    for row in rows {
        text += &line(row.iter().map(String::as_str), &widths);
    }
    text
}

fn line<'a>(cells: impl Iterator<Item = &'a str>, widths: &[usize]) -> String {
    let mut text = String::new();
    for (cell, width) in cells.zip(widths) {
        text += &format!("{cell:<width$}  ");
    }
    text.trim_end().to_owned() + "\n"
}

#[cfg(test)]
mod tests {
    use super::columns;

    #[test]
    fn widths_follow_the_content() {
        let rows = [vec!["a".to_owned(), "long".to_owned()], vec!["bcd".to_owned(), "e".to_owned()]];
        assert_eq!(columns(&["x", "y"], &rows), "x    y\na    long\nbcd  e\n");
    }
}
