//! Lists of programs and options. The same rows run on one host and between hosts.
//!
//! A list is a macro that passes its rows to a macro of the test, which makes one test of each row.
//! No row names a port or an address. The code that runs a row adds both.

use crate::figures;
use crate::pair::Sides;

/// Debian's perftest: every test for the services of this stack, with the options that users type.
#[macro_export]
macro_rules! perftest_list {
    ($each:ident) => {
        $each! {
            send_bw_rc: "ib_send_bw" "-c" "RC";
            send_bw_uc: "ib_send_bw" "-c" "UC";
            send_bw_ud: "ib_send_bw" "-c" "UD";
            send_lat_rc: "ib_send_lat" "-c" "RC";
            send_lat_uc: "ib_send_lat" "-c" "UC";
            send_lat_ud: "ib_send_lat" "-c" "UD";
            write_bw_rc: "ib_write_bw" "-c" "RC";
            write_bw_uc: "ib_write_bw" "-c" "UC";
            write_lat_rc: "ib_write_lat" "-c" "RC";
            write_lat_uc: "ib_write_lat" "-c" "UC";
            read_bw: "ib_read_bw";
            read_lat: "ib_read_lat";
            atomic_bw_compare_and_swap: "ib_atomic_bw" "-A" "CMP_AND_SWAP";
            atomic_bw_fetch_and_add: "ib_atomic_bw" "-A" "FETCH_AND_ADD";
            atomic_lat_compare_and_swap: "ib_atomic_lat" "-A" "CMP_AND_SWAP";
            atomic_lat_fetch_and_add: "ib_atomic_lat" "-A" "FETCH_AND_ADD";

            send_bw_both_ways: "ib_send_bw" "-b";
            send_bw_uc_both_ways: "ib_send_bw" "-c" "UC" "-b";
            send_bw_ud_both_ways: "ib_send_bw" "-c" "UD" "-b";
            write_bw_both_ways: "ib_write_bw" "-b";
            read_bw_both_ways: "ib_read_bw" "-b";
            atomic_bw_both_ways: "ib_atomic_bw" "-b";

            send_bw_events: "ib_send_bw" "-e";
            send_bw_ud_events: "ib_send_bw" "-c" "UD" "-e";
            send_lat_events: "ib_send_lat" "-e";
            send_lat_uc_events: "ib_send_lat" "-c" "UC" "-e";
            send_lat_ud_events: "ib_send_lat" "-c" "UD" "-e";
            read_bw_events: "ib_read_bw" "-e";
            read_lat_events: "ib_read_lat" "-e";
            atomic_bw_events: "ib_atomic_bw" "-e";
            atomic_lat_events: "ib_atomic_lat" "-e";

            send_bw_16_qps: "ib_send_bw" "-q" "16";
            write_bw_16_qps: "ib_write_bw" "-q" "16" "-n" "1000";
            write_bw_16_qps_both_ways: "ib_write_bw" "-q" "16" "-b" "-n" "1000";
            read_bw_16_qps: "ib_read_bw" "-q" "16";
            atomic_bw_16_qps: "ib_atomic_bw" "-q" "16";

            send_bw_inline: "ib_send_bw" "--inline_size" "128" "-s" "128";
            send_lat_inline: "ib_send_lat" "--inline_size" "64" "-s" "64";
            send_lat_ud_inline: "ib_send_lat" "-c" "UD" "--inline_size" "64" "-s" "64";
            write_bw_inline: "ib_write_bw" "--inline_size" "128" "-s" "128";
            write_lat_inline: "ib_write_lat" "--inline_size" "64" "-s" "64";
            write_lat_without_inline: "ib_write_lat" "--inline_size" "0" "-s" "64";

            send_bw_gid_index_0: "ib_send_bw" "-x" "0";
            write_lat_gid_index_1: "ib_write_lat" "-x" "1";
            read_bw_gid_index_1: "ib_read_bw" "-x" "1";
            send_lat_ud_gid_index_1: "ib_send_lat" "-c" "UD" "-x" "1";

            send_bw_for_a_second: "ib_send_bw" "-D" "1";
            write_bw_for_a_second: "ib_write_bw" "-D" "1";
            read_bw_for_a_second: "ib_read_bw" "-D" "1";
            atomic_bw_for_a_second: "ib_atomic_bw" "-D" "1";
            send_lat_for_a_second: "ib_send_lat" "-D" "1";
            write_lat_for_a_second: "ib_write_lat" "-D" "1";

            send_bw_shared_receive_queue: "ib_send_bw" "--use-srq" "-q" "4";
            send_lat_shared_receive_queue: "ib_send_lat" "--use-srq";
            send_bw_shared_receive_queue_both_ways: "ib_send_bw" "--use-srq" "-b";

            send_bw_lists_of_16: "ib_send_bw" "-l" "16" "-n" "1600";
            write_bw_one_signal_in_64: "ib_write_bw" "-Q" "64";
            write_bw_mtu_1024: "ib_write_bw" "-m" "1024";
            write_bw_one_mebibyte: "ib_write_bw" "-s" "1048576" "-n" "500";
        }
    };
}

/// perftest's tests of all message sizes, from 2 bytes to 8 MiB. They are slow: for each size, each
/// side measures the processor's clock for 0.2 s. With `-C`, which only the latency programs have,
/// they print cycles and measure nothing. Between hosts, two links are enough for each MTU and each
/// family to meet each size; the pingpongs validate every byte of all sizes on all links.
#[macro_export]
macro_rules! perftest_sizes_list {
    ($each:ident) => {
        $each! {
            send_bw_all_sizes: "ib_send_bw" "-a" "-n" "60";
            send_lat_all_sizes: "ib_send_lat" "-a" "-C" "-n" "30";
            write_bw_all_sizes: "ib_write_bw" "-a" "-n" "60";
            write_lat_all_sizes: "ib_write_lat" "-a" "-C" "-n" "30";
            read_bw_all_sizes: "ib_read_bw" "-a" "-n" "60";
            read_lat_all_sizes: "ib_read_lat" "-a" "-C" "-n" "30";
            send_bw_uc_all_sizes: "ib_send_bw" "-c" "UC" "-a" "-n" "60";
            write_bw_uc_all_sizes: "ib_write_bw" "-c" "UC" "-a" "-n" "60";
        }
    };
}

/// A selection of perftest: each combination of operation and service once.
#[macro_export]
macro_rules! perftest_selection {
    ($each:ident) => {
        $each! {
            send_bw_rc: "ib_send_bw" "-c" "RC";
            send_bw_ud: "ib_send_bw" "-c" "UD";
            send_lat_rc: "ib_send_lat" "-c" "RC";
            send_lat_events: "ib_send_lat" "-e";
            write_bw_rc: "ib_write_bw" "-c" "RC";
            write_bw_uc: "ib_write_bw" "-c" "UC";
            write_lat_rc: "ib_write_lat" "-c" "RC";
            write_bw_16_qps: "ib_write_bw" "-q" "16" "-n" "1000";
            read_bw: "ib_read_bw";
            read_lat: "ib_read_lat";
            atomic_bw: "ib_atomic_bw";
            atomic_lat: "ib_atomic_lat";
        }
    };
}

/// The pingpongs of Debian's ibverbs-utils, polling and event-driven. They validate every byte.
#[macro_export]
macro_rules! pingpong_list {
    ($each:ident) => {
        $each! {
            rc: "ibv_rc_pingpong" "-g" "0" "-c";
            rc_events: "ibv_rc_pingpong" "-g" "0" "-c" "-e";
            uc: "ibv_uc_pingpong" "-g" "0" "-c";
            uc_events: "ibv_uc_pingpong" "-g" "0" "-c" "-e";
            ud: "ibv_ud_pingpong" "-g" "0" "-c";
            ud_events: "ibv_ud_pingpong" "-g" "0" "-c" "-e";
            srq: "ibv_srq_pingpong" "-g" "0" "-c";
            srq_events: "ibv_srq_pingpong" "-g" "0" "-c" "-e";
        }
    };
}

/// Message sizes of a pingpong, each with its number of iterations. Large messages need fewer
/// iterations.
pub const SIZES: &[(&str, &str)] = &[
    ("1", "1000"),
    ("7", "1000"),
    ("256", "1000"),
    ("300", "1000"),
    ("4096", "1000"),
    ("4097", "1000"),
    ("32768", "500"),
    ("65536", "500"),
    ("1000003", "50"),
    ("1048576", "50"),
    ("8388608", "20"),
];

/// Stops the test unless the client of a pingpong or of perftest printed figures. Any figures are
/// accepted.
#[track_caller]
pub fn expect_figures(words: &[&str], sides: &Sides) {
    let output = &sides.client.output;
    let figure = if words[0].starts_with("ibv_") {
        figures::pingpong(output).map(|(_, rate)| rate)
    } else {
        figures::perftest(output, column(words))
    };
    assert!(figure.is_some_and(|figure| figure > 0.0), "no figures in: {}", sides.client.told());
}

/// The column of perftest's table that matters. The rate of messages has six decimals, so it is
/// above zero on the slowest network. With -D the latency tests print averages only.
fn column(words: &[&str]) -> &'static str {
    match (words[0].ends_with("_lat"), words.contains(&"-D")) {
        (false, _) => "MsgRate[Mpps]",
        (true, true) => "t_avg[usec]",
        (true, false) => "t_typical[usec]",
    }
}

/// The connection manager's own programs, from Debian's rdmacm-utils: the line of a server and the
/// line of its client, in the format of [`crate::manager`].
#[macro_export]
macro_rules! manager_list {
    ($each:ident) => {
        $each! {
            rping: "rping -s -a ADDRESS -p PORT -v -V -C 20" => "rping -c -a ADDRESS -p PORT -v -V -C 20";
            rping_large: "rping -s -a ADDRESS -p PORT -V -S 65000 -C 20" => "rping -c -a ADDRESS -p PORT -V -S 65000 -C 20";
            rping_own_qp: "rping -s -a ADDRESS -p PORT -V -C 10 -q" => "rping -c -a ADDRESS -p PORT -V -C 10 -q";
            ucmatose: "ucmatose -b ADDRESS -p PORT -c 50" => "ucmatose -s ADDRESS -p PORT -c 50";
            ucmatose_migrates: "ucmatose -b ADDRESS -p PORT -c 5 -m" => "ucmatose -s ADDRESS -p PORT -c 5 -m";
            ucmatose_ib_port_space: "ucmatose -P ib -b ADDRESS -p PORT" => "ucmatose -P ib -s ADDRESS -p PORT";
            udaddy: "udaddy -b ADDRESS -c 20" => "udaddy -s ADDRESS -c 20";
            rdma_client: "rdma_server -s ADDRESS -p PORT" => "rdma_client -s ADDRESS -p PORT";
            cmtime: "cmtime -b ADDRESS -p PORT" => "cmtime -s ADDRESS -p PORT -c 100";
            rstream: "rstream -b ADDRESS -p PORT -T v -I 20 -C 10 -S 65536" => "rstream -s ADDRESS -p PORT -T v -I 20 -C 10 -S 65536";
            rstream_async: "rstream -b ADDRESS -p PORT -T a -C 10 -S 4096" => "rstream -s ADDRESS -p PORT -T a -C 10 -S 4096";
            rstream_blocking: "rstream -b ADDRESS -p PORT -T b -C 10 -S 4096" => "rstream -s ADDRESS -p PORT -T b -C 10 -S 4096";
            rstream_resolves: "rstream -b ADDRESS -p PORT -T r -C 10 -S 4096" => "rstream -s ADDRESS -p PORT -T r -C 10 -S 4096";
            riostream: "riostream -b ADDRESS -p PORT -T v -C 10 -S 65536" => "riostream -s ADDRESS -p PORT -T v -C 10 -S 65536";
        }
    };
}

/// Programs with datagram rsockets.
#[macro_export]
macro_rules! manager_datagram_list {
    ($each:ident) => {
        $each! {
            udpong: "udpong -b ADDRESS -p PORT -C 100 -S 1000" => "udpong -s ADDRESS -p PORT -C 100 -S 1000";
            udpong_echo: "udpong -b ADDRESS -p PORT -T e -C 100 -S 1000" => "udpong -s ADDRESS -p PORT -T e -C 100 -S 1000";
        }
    };
}

/// perftest with queue pairs that the connection manager connects.
#[macro_export]
macro_rules! manager_perftest_list {
    ($each:ident) => {
        $each! {
            send_lat_rc: "ib_send_lat -R -p PORT" => "ib_send_lat -R -p PORT ADDRESS";
            send_lat_ud: "ib_send_lat -R -c UD -p PORT" => "ib_send_lat -R -c UD -p PORT ADDRESS";
            send_bw_rc: "ib_send_bw -R -p PORT" => "ib_send_bw -R -p PORT ADDRESS";
            send_bw_ud: "ib_send_bw -R -c UD -p PORT" => "ib_send_bw -R -c UD -p PORT ADDRESS";
            send_bw_events: "ib_send_bw -R -e -p PORT" => "ib_send_bw -R -e -p PORT ADDRESS";
            write_lat: "ib_write_lat -R -p PORT" => "ib_write_lat -R -p PORT ADDRESS";
            write_bw: "ib_write_bw -R -p PORT" => "ib_write_bw -R -p PORT ADDRESS";
            write_bw_4_qps: "ib_write_bw -R -q 4 -p PORT" => "ib_write_bw -R -q 4 -p PORT ADDRESS";
            read_lat: "ib_read_lat -R -p PORT" => "ib_read_lat -R -p PORT ADDRESS";
            read_bw_both_ways: "ib_read_bw -R -b -p PORT" => "ib_read_bw -R -b -p PORT ADDRESS";
            atomic_lat: "ib_atomic_lat -R -p PORT" => "ib_atomic_lat -R -p PORT ADDRESS";
            write_bw_talks_by_manager: "ib_write_bw -z -p PORT" => "ib_write_bw -z -p PORT ADDRESS";
        }
    };
}
