//! The export list of rsockets: every rsocket name that `librdmacm.so.1` has had since rdma-core
//! v44, and the function behind it.

use super::{api, api_data, options};
use crate::export::export;

export!("@@RDMACM_1.0":
    raccept = api::raccept,
    rbind = api::rbind,
    rclose = api::rclose,
    rconnect = api::rconnect,
    rfcntl = api::rfcntl,
    rgetpeername = api::rgetpeername,
    rgetsockname = api::rgetsockname,
    rgetsockopt = options::rgetsockopt,
    riomap = api_data::riomap,
    riounmap = api_data::riounmap,
    riowrite = api_data::riowrite,
    rlisten = api::rlisten,
    rpoll = api::rpoll,
    rread = api_data::rread,
    rreadv = api_data::rreadv,
    rrecv = api_data::rrecv,
    rrecvfrom = api_data::rrecvfrom,
    rrecvmsg = api_data::rrecvmsg,
    rselect = api::rselect,
    rsend = api_data::rsend,
    rsendmsg = api_data::rsendmsg,
    rsendto = api_data::rsendto,
    rsetsockopt = options::rsetsockopt,
    rshutdown = api::rshutdown,
    rsocket = api::rsocket,
    rwrite = api_data::rwrite,
    rwritev = api_data::rwritev,
);

export!("@@RDMACM_1.5":
    repoll_create = api::repoll_create,
    repoll_ctl = api::repoll_ctl,
    repoll_wait = api::repoll_wait,
);
