//! Takes objects and open devices until the agent refuses. Every user has a share, so enough must
//! remain for other users.

use std::path::Path;

use crate::Report;
use crate::client::{Client, create_qp};

/// More objects than any share in the tests.
const MANY: usize = 20_000;

pub(crate) fn try_all(report: &mut Report, run_dir: &Path) {
    let Ok(client) = Client::open(run_dir) else { return report.fail("the device cannot be opened") };
    let Ok(own) = client.objects() else { return report.fail("no objects") };
    let refusal = (0..MANY).find_map(|_| client.call(&create_qp(own.pd, own.cq)).err());
    match refusal {
        Some(error) => {
            report.require(&format!("a share of QPs that is told: {}", error.reason), error.reason.contains("share"))
        }
        None => report.fail("QPs without an end"),
    }
    let clients: Vec<Client> = (0..MANY).map_while(|_| Client::open(run_dir).ok()).collect();
    report.require("open devices have an end", clients.len() < MANY);
}
