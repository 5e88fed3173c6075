//! MultiPathRecord: paths between several sources and several destinations. Not which path a pair
//! has ([`super::paths`]). The function is [`multi_paths`].

use super::SaConfig;
use super::index::Index;
use super::paths::paths;
use super::request::{Answer, Refusal, SaRequest};
use super::walk::egresses;
use crate::inventory::{Inventory, PortId};
use std::collections::HashMap;
use wire::layout::Layout;
use wire::mad::METHOD_GET_TABLE;
use wire::sa::{
    DATA_LEN, MAX_GIDS, MultiPathRecord as Multi, PathRecord, STATUS_INSUFFICIENT_COMPONENTS, STATUS_INVALID_REQUEST,
};

/// The most paths of an answer to a request that names no number.
const MOST_PATHS: usize = 127;

/// The components of both records.
const COMMON: [(u64, u64); 15] = [
    (Multi::RAW, PathRecord::RAW),
    (Multi::FLOW_LABEL, PathRecord::FLOW_LABEL),
    (Multi::HOP_LIMIT, PathRecord::HOP_LIMIT),
    (Multi::TRAFFIC_CLASS, PathRecord::TRAFFIC_CLASS),
    (Multi::REVERSIBLE, PathRecord::REVERSIBLE),
    (Multi::PKEY, PathRecord::PKEY),
    (Multi::QOS_CLASS, PathRecord::QOS_CLASS),
    (Multi::SL, PathRecord::SL),
    (Multi::MTU_SELECTOR, PathRecord::MTU_SELECTOR),
    (Multi::MTU, PathRecord::MTU),
    (Multi::RATE_SELECTOR, PathRecord::RATE_SELECTOR),
    (Multi::RATE, PathRecord::RATE),
    (Multi::LIFE_SELECTOR, PathRecord::LIFE_SELECTOR),
    (Multi::LIFE, PathRecord::LIFE),
    (Multi::SERVICE_ID_HIGH, PathRecord::SERVICE_ID_HIGH),
];

/// The template of a pair's paths, without its GIDs.
fn template(wanted: &Multi) -> PathRecord {
    PathRecord {
        service_id: u64::from(wanted.service_id_high) << 56 | wanted.service_id_low,
        raw: wanted.raw,
        flow_label: wanted.flow_label,
        hop_limit: wanted.hop_limit,
        traffic_class: wanted.traffic_class,
        reversible: wanted.reversible,
        pkey: wanted.pkey,
        qos_class: wanted.qos_class,
        sl: wanted.sl,
        mtu_selector: wanted.mtu_selector,
        mtu: wanted.mtu,
        rate_selector: wanted.rate_selector,
        rate: wanted.rate,
        life_selector: wanted.life_selector,
        life: wanted.life,
        ..PathRecord::default()
    }
}

/// Answers MultiPathRecord with PathRecords, as many as the request wants in all. The first ones
/// have each source and each destination once. A second path of a pair comes after all pairs.
/// With an IndependenceSelector, paths with few links in common come first.
pub(super) fn multi_paths(request: &SaRequest<'_>, index: &Index, config: &SaConfig) -> Answer {
    let wanted: Multi = request.template();
    if !request.asks(Multi::SOURCES | Multi::DESTINATIONS) {
        return Err(Refusal(STATUS_INSUFFICIENT_COMPONENTS));
    }
    let (sources, targets) = (usize::from(wanted.sources), usize::from(wanted.destinations));
    if sources == 0 || targets == 0 || sources + targets > MAX_GIDS {
        return Err(Refusal(STATUS_INVALID_REQUEST));
    }
    let most = if request.asks(Multi::NUMBER) { usize::from(wanted.number) } else { MOST_PATHS };
    let (sgids, others) = wanted.gids.split_at(sources);
    let shared = COMMON.iter().filter(|(multi, _)| request.asks(*multi));
    let mask = shared.fold(PathRecord::SGID | PathRecord::DGID, |mask, (_, path)| mask | path);
    let turns = (0..targets).flat_map(|turn| (0..sources).map(move |nth| (nth, (nth + turn) % targets)));
    let mut pairs = Vec::new();
    for (source, target) in turns {
        let mut data = [0; DATA_LEN];
        PathRecord { sgid: sgids[source], dgid: others[target], ..template(&wanted) }.write(&mut data);
        let mut pair = SaRequest { mask, data: &data, ..*request };
        pair.header.method = METHOD_GET_TABLE;
        pairs.push(paths(&pair, index, config)?);
    }
    let longest = pairs.iter().map(|found| found.count).max().unwrap_or(0);
    let mut paths: Vec<PathRecord> =
        (0..longest).flat_map(|nth| pairs.iter().filter_map(move |pair| pair.nth(nth))).collect();
    if request.asks(Multi::INDEPENDENCE) && wanted.independence != 0 {
        paths = independent(request.inventory, &paths, most);
    }
    let mut records = request.records::<PathRecord>();
    paths.into_iter().take(most).try_for_each(|path| records.push(path))?;
    Ok(records)
}

/// Takes paths one after the other: the next one has the fewest links in common with those before.
fn independent(inventory: &Inventory, paths: &[PathRecord], most: usize) -> Vec<PathRecord> {
    let way = |path: &PathRecord| {
        let (from, to) = (inventory.by_lid(path.slid)?, inventory.by_lid(path.dlid)?);
        Some(egresses(inventory, from, to, path.dlid))
    };
    let mut left: Vec<_> = paths.iter().map(|path| (*path, way(path).unwrap_or_default())).collect();
    let (mut used, mut taken) = (HashMap::new(), Vec::new());
    while taken.len() < most {
        let cost = |ports: &[PortId]| ports.iter().filter_map(|port| used.get(port)).sum::<usize>();
        let Some(next) = (0..left.len()).min_by_key(|at| cost(&left[*at].1)) else { break };
        let (path, ports) = left.remove(next);
        ports.into_iter().for_each(|port| *used.entry(port).or_insert(0) += 1);
        taken.push(path);
    }
    taken
}
