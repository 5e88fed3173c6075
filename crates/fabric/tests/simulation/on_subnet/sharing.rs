//! Several flows on one link: lanes share it by their weights, and flows of one lane fairly.

use std::time::Duration;

use super::flow::{Flow, run};
use super::net::{Net, two_lanes};
use engine::Service;
use sm::Config;

/// Bytes in a second on a link of 4X SDR, which has 8 Gb/s of data.
const LINK: u64 = 1_000_000_000;
const WARM: Duration = Duration::from_millis(2);
const TIME: Duration = Duration::from_millis(8);

/// Three hosts at one switch. The link of H3 is slow.
const STAR: &str = r#"
Switch 4 "S1"
[1] "H1"[1]
[2] "H2"[1]
[3] "H3"[1] w=2 s=1

Hca 1 "H1"
Hca 1 "H2"
Hca 1 "H3"
"#;

fn part(bytes: u64) -> f64 {
    bytes as f64 / (LINK as f64 * TIME.as_secs_f64())
}

#[test]
fn service_level_0_that_saturates_lane_0_leaves_service_level_1_its_share_by_the_weights() {
    for service in [Service::Rc, Service::Ud] {
        for (weights, share) in [([64, 64], 0.5), ([64, 192], 0.75), ([192, 64], 0.25)] {
            let mut net = Net::managed(1, STAR, 3, two_lanes(weights));
            let mut flows = [(1, 0), (2, 1)].map(|(from, sl)| Flow::new(&mut net, service, from, 3, sl));
            run(&mut net, WARM, &mut flows);
            let bytes = run(&mut net, TIME, &mut flows);
            let (all, of_sl_1) = (bytes[0] + bytes[1], bytes[1] as f64 / (bytes[0] + bytes[1]) as f64);
            println!("{service:?}, weights {weights:?}: SL 1 has {of_sl_1:.3} of {:.3}", part(all));
            assert!((of_sl_1 - share).abs() < 0.03, "{service:?}, weights {weights:?}: SL 1 has {of_sl_1:.3}");
            assert!(part(all) > 0.95, "{service:?}, weights {weights:?}: the link is idle: {:.3}", part(all));
            assert_eq!(net.drops(), 0);
        }
    }
}

#[test]
fn a_lane_alone_has_the_whole_link() {
    let mut net = Net::managed(1, STAR, 3, two_lanes([192, 64]));
    let mut flows = [Flow::new(&mut net, Service::Rc, 1, 3, 1)];
    run(&mut net, WARM, &mut flows);
    let bytes = run(&mut net, TIME, &mut flows);
    assert!(part(bytes[0]) > 0.95, "{:.3}", part(bytes[0]));
}

#[test]
fn two_senders_into_one_link_share_it_fairly_and_fill_it() {
    for service in [Service::Rc, Service::Ud] {
        let mut net = Net::managed(2, STAR, 3, Config::default());
        let mut flows = [1, 2].map(|from| Flow::new(&mut net, service, from, 3, 0));
        run(&mut net, WARM, &mut flows);
        let bytes = run(&mut net, TIME, &mut flows);
        let parts = [part(bytes[0]), part(bytes[1])];
        println!("{service:?}: {parts:.3?}");
        assert!((parts[0] - parts[1]).abs() < 0.05, "{service:?}: {parts:.3?}");
        assert!((0.95..=1.0).contains(&(parts[0] + parts[1])), "{service:?}: {parts:.3?}");
        assert_eq!(net.drops(), 0);
    }
}
