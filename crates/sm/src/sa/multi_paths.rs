//! MultiPathRecord: paths between several sources and several destinations. Not which path a pair has
//! ([`super::paths`]). The function is [`multi_paths`].

use super::Config;
use super::index::Index;
use super::paths::paths;
use super::request::{Answer, Refusal, Request};
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
/// Whether paths have a link in common is not looked at.
pub(super) fn multi_paths(request: &Request<'_>, index: &Index, config: &Config) -> Answer {
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
        let mut pair = Request { mask, data: &data, ..*request };
        pair.header.method = METHOD_GET_TABLE;
        pairs.push(paths(&pair, index, config)?);
    }
    let mut records = request.records::<PathRecord>();
    let longest = pairs.iter().map(|found| found.count).max().unwrap_or(0);
    for (nth, pair) in (0..longest).flat_map(|nth| pairs.iter().map(move |pair| (nth, pair))) {
        if records.count < most {
            records.append(pair, nth)?;
        }
    }
    Ok(records)
}
