//! The benchmark of a subnet on one host: what the switches between two programs cost. It compares
//! programs on nodes that are three switches apart with the same programs on one InfiniBand port.
//! Both go by LID. The principal type is [`SubnetRooms`].

use harness::{Dist, HANG, Pair, Room, Sides};

use super::figure;

/// The names of the figures of [`SubnetRooms::run`].
pub(super) const NAMES: [&str; 4] = [
    "ib_send_lat -s 8, through three switches",
    "ib_write_bw -s 1048576, through three switches",
    "ib_send_lat -s 8, by LID on one port",
    "ib_write_bw -s 1048576, by LID on one port",
];

/// The bandwidth depends on where the pages of a process are, so one pair of processes says little.
const ROUNDS: usize = 5;

const ROW: &str = "\
Switch 8 \"S1\"\n[1] \"H1\"[1]\n[2] \"S2\"[1]\n\n\
Switch 8 \"S2\"\n[2] \"S3\"[2]\n\n\
Switch 8 \"S3\"\n[1] \"H2\"[1]\n\n\
Hca 1 \"H1\"\n\nHca 1 \"H2\"\n";

/// Two agents: one with switches, and one with a port alone.
pub(super) struct SubnetRooms {
    pub(super) switched: Room,
    pub(super) alone: Room,
}

impl SubnetRooms {
    pub(super) fn new(dist: &Dist) -> Result<Self, String> {
        let switched = Room::with(dist.clone())?.with_topology(ROW, &[])?;
        switched.wait_for_path("H1", "H2", true)?;
        let alone = Room::with(dist.clone())?.with_agent(&["--link-layer", "infiniband", "--address", "127.0.0.1"])?;
        Ok(Self { switched, alone })
    }

    /// Runs each program [`ROUNDS`] times, the server on the first processor and the client on the
    /// second. Returns the medians by the names in [`NAMES`].
    pub(super) fn run(&self, server: &str, client: &str) -> Result<Vec<(&'static str, f64)>, String> {
        let on = |processor, line: &'static str| -> Vec<&str> {
            ["taskset", "-c", processor].into_iter().chain(line.split_whitespace()).collect()
        };
        let switched = |line, column| {
            let (server, client) = (on(server, line), on(client, line));
            let pair = || Pair::on_nodes(&self.switched, ("H1", &server), ("H2", &client))?.wait(HANG);
            figure(&Sides::measured(pair)?, column)
        };
        let alone = |line, column| {
            let (server, client) = (on(server, line), on(client, line));
            let pair = || Pair::start_different(&self.alone, &server, &self.alone, &client)?.wait(HANG);
            figure(&Sides::measured(pair)?, column)
        };
        let (latency, bandwidth) = ("ib_send_lat -s 8 -n 50000", "ib_write_bw -s 1048576 -n 5000");
        let (time, rate) = ("t_typical[usec]", "BW average[MB/sec]");
        let mut all = [const { Vec::new() }; 4];
        for round in 0..ROUNDS {
            let mut order = [0, 2, 1, 3];
            if round % 2 == 1 {
                order.reverse();
            }
            for which in order {
                all[which].push(match which {
                    0 => switched(latency, time)?,
                    1 => switched(bandwidth, rate)?,
                    2 => alone(latency, time)?,
                    _ => alone(bandwidth, rate)?,
                });
            }
        }
        let figures = all.map(|mut figures| {
            figures.sort_by(f64::total_cmp);
            figures[ROUNDS / 2]
        });
        Ok(NAMES.into_iter().zip(figures).collect())
    }
}
