//! ServiceRecord: the registry of services, with leases. Principal type: [`Services`].

use super::index::{Index, is_of_subnet};
use super::request::{Answer, Refusal, SaRequest, common, pkeys};
use crate::inventory::PortId;
use std::collections::BTreeMap;
use std::time::Duration;
use wire::cm::Gid;
use wire::layout::matches;
use wire::sa::{
    STATUS_DENIED, STATUS_INSUFFICIENT_COMPONENTS, STATUS_INVALID_GID, STATUS_INVALID_REQUEST, STATUS_NO_RECORDS,
    STATUS_NO_RESOURCES, ServiceRecord,
};

/// The most services of all ports.
const MOST: usize = 4096;
/// The most services of one port.
const MOST_OF_PORT: usize = 64;

#[derive(Clone, Debug)]
struct ServiceLease {
    record: ServiceRecord,
    port: PortId,
    /// When the lease ends; nothing if it does not.
    end: Option<Duration>,
}

/// The services, by their id, port and partition.
#[derive(Clone, Debug, Default)]
pub(super) struct Services {
    services: BTreeMap<(u64, Gid, u16), ServiceLease>,
}

fn identity(request: &SaRequest<'_>, record: &ServiceRecord) -> (u64, Gid, u16) {
    let pkey = if request.asks(ServiceRecord::PKEY) { record.pkey } else { wire::pkey::DEFAULT };
    (record.id, record.gid, pkey)
}

/// What an asker may see of a record.
fn shown(request: &SaRequest<'_>, record: ServiceRecord) -> ServiceRecord {
    if request.trusted { record } else { ServiceRecord { key: [0; 16], ..record } }
}

impl Services {
    /// Registers a service, or renews its lease. A GID of another subnet is taken as one of the
    /// asker. A service without a key may be given one.
    pub(super) fn set(&mut self, request: &SaRequest<'_>, index: &Index, now: Duration) -> Answer {
        let mut record: ServiceRecord = request.template();
        if !request.asks(ServiceRecord::ID | ServiceRecord::GID) {
            return Err(Refusal(STATUS_INSUFFICIENT_COMPONENTS));
        }
        let key = identity(request, &record);
        let port = if is_of_subnet(request.prefix, record.gid) {
            index.find(request.prefix, record.gid).ok_or(Refusal(STATUS_INVALID_GID))?
        } else {
            request.asker
        };
        let known = self.services.get(&key);
        let is_of_other = |known: &ServiceLease| {
            known.port != request.asker || known.record.key != [0; 16] && known.record.key != record.key
        };
        if !request.trusted && (port != request.asker || known.is_some_and(is_of_other)) {
            return Err(Refusal(STATUS_DENIED));
        }
        let own = self.services.values().filter(|service| service.port == port).count();
        if known.is_none() && (self.services.len() >= MOST || own >= MOST_OF_PORT) {
            return Err(Refusal(STATUS_NO_RESOURCES));
        }
        record.pkey = key.2;
        if !request.asks(ServiceRecord::LEASE) {
            record.lease = ServiceRecord::FOREVER;
        }
        let in_partition =
            request.inventory.port(port).is_some_and(|port| common(pkeys(port), &[key.2 | 0x8000]).is_some());
        if record.lease == 0 || !in_partition {
            return Err(Refusal(STATUS_INVALID_REQUEST));
        }
        let forever = record.lease == ServiceRecord::FOREVER;
        let end = (!forever).then(|| now.saturating_add(Duration::from_secs(record.lease.into())));
        self.services.insert(key, ServiceLease { record, port, end });
        let mut records = request.records::<ServiceRecord>();
        records.push(shown(request, record))?;
        Ok(records)
    }

    /// Deletes a service of the asker, which must not name another key. The components that say
    /// which service it is are read whether the mask has them or not.
    pub(super) fn delete(&mut self, request: &SaRequest<'_>) -> Answer {
        let record: ServiceRecord = request.template();
        let key = identity(request, &record);
        let known = self.services.get(&key).ok_or(Refusal(STATUS_NO_RECORDS))?;
        let is_other_key = request.asks(ServiceRecord::KEY) && known.record.key != record.key;
        if !request.trusted && (known.port != request.asker || is_other_key) {
            return Err(Refusal(STATUS_DENIED));
        }
        let mut records = request.records::<ServiceRecord>();
        records.push(shown(request, known.record))?;
        self.services.remove(&key);
        Ok(records)
    }

    /// Answers queries. Without the SM_Key, the keys in the answer are zeros.
    pub(super) fn query(&self, request: &SaRequest<'_>, now: Duration) -> Answer {
        let template: ServiceRecord = request.template();
        let mut records = request.records::<ServiceRecord>();
        let own = request.inventory.port(request.asker).map_or(&[][..], pkeys);
        for service in self.services.values() {
            let mut record = service.record;
            if let Some(end) = service.end {
                let left = end.saturating_sub(now).as_secs();
                record.lease = u32::try_from(left).unwrap_or(ServiceRecord::FOREVER);
            }
            let seen = request.trusted || common(own, &[record.pkey]).is_some();
            if seen && matches(&record, &template, request.mask) {
                records.push(shown(request, record))?;
            }
        }
        Ok(records)
    }

    /// Forgets services whose port is gone.
    pub(super) fn retain(&mut self, exists: impl Fn(PortId) -> bool) {
        self.services.retain(|_, service| exists(service.port));
    }

    /// Ends leases.
    pub(super) fn handle_timeout(&mut self, now: Duration) {
        self.services.retain(|_, service| service.end.is_none_or(|end| end > now));
    }

    /// When the next lease ends.
    pub(super) fn deadline(&self) -> Option<Duration> {
        self.services.values().filter_map(|service| service.end).min()
    }
}
