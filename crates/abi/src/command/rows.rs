//! The table of all commands: one [`Row`] per number, in both profiles, for `docs/abi.md` and for
//! [`super::admit`].
//!
//! The errors in a row are in addition to the errors that every command can return
//! (`super::admit`).

use crate::errno::Errno;
use crate::layout::{Layout, Record};
use crate::{ah, cq, device, dm, mcast, mr, open, pd, post, private, qp, queue, srq, stream, target, wire, wq, xrc};

/// What an agent does with a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Support {
    /// The agent carries it out. The string names the test that checks every byte.
    Tested(&'static str),
    /// The agent always refuses it with this error.
    Refused(Errno),
}

/// One command.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// Command number.
    pub number: u8,
    /// Whether it has the extended form.
    pub extended: bool,
    /// The profile in which the number has this meaning; `None` for both.
    pub profile: Option<u16>,
    /// Name.
    pub name: &'static str,
    /// Request body.
    pub request: Option<Layout>,
    /// Shortest request body in bytes.
    pub request_min: usize,
    /// Private tail of the request.
    pub private_in: Option<Layout>,
    /// Answer.
    pub answer: Option<Layout>,
    /// Least room for the answer in bytes.
    pub answer_min: usize,
    /// Private tail of the answer.
    pub private_out: Option<Layout>,
    /// Arrays and file descriptors that belong to request or answer.
    pub extras: &'static str,
    /// Errors of its own.
    pub errors: &'static [(Errno, &'static str)],
    /// What the agent does with it.
    pub support: Support,
}

impl Row {
    const fn new(number: u8, extended: bool, name: &'static str, support: Support) -> Self {
        Self {
            number,
            extended,
            profile: None,
            name,
            request: None,
            request_min: 0,
            private_in: None,
            answer: None,
            answer_min: 0,
            private_out: None,
            extras: "",
            errors: &[],
            support,
        }
    }

    const fn legacy(number: u8, name: &'static str, test: &'static str) -> Self {
        Self::new(number, false, name, Support::Tested(test))
    }

    const fn extended(number: u8, name: &'static str, test: &'static str) -> Self {
        Self::new(number, true, name, Support::Tested(test))
    }

    const fn refused(number: u8, name: &'static str, errno: Errno) -> Self {
        Self::new(number, false, name, Support::Refused(errno))
    }

    const fn refused_extended(number: u8, name: &'static str) -> Self {
        Self::new(number, true, name, Support::Refused(Errno::EOPNOTSUPP))
    }

    const fn mainline(mut self) -> Self {
        self.profile = Some(open::profile::MAINLINE);
        self
    }

    const fn ofed(mut self) -> Self {
        self.profile = Some(open::profile::OFED);
        self
    }

    const fn request<T: Record>(mut self) -> Self {
        self.request = Some(T::LAYOUT);
        self.request_min = T::LAYOUT.size;
        self
    }

    const fn at_least(mut self, len: usize) -> Self {
        self.request_min = len;
        self
    }

    const fn private_in<T: Record>(mut self) -> Self {
        self.private_in = Some(T::LAYOUT);
        self
    }

    const fn answer<T: Record>(mut self) -> Self {
        self.answer = Some(T::LAYOUT);
        self.answer_min = T::LAYOUT.size;
        self
    }

    const fn room_at_least(mut self, len: usize) -> Self {
        self.answer_min = len;
        self
    }

    const fn private_out<T: Record>(mut self) -> Self {
        self.private_out = Some(T::LAYOUT);
        self
    }

    const fn extras(mut self, extras: &'static str) -> Self {
        self.extras = extras;
        self
    }

    const fn errors(mut self, errors: &'static [(Errno, &'static str)]) -> Self {
        self.errors = errors;
        self
    }

    /// Whether this is GET_CONTEXT, which must be the first command.
    #[must_use]
    pub fn is_get_context(&self) -> bool {
        !self.extended && self.number == 0
    }
}

/// The row of a command, `None` for a number without meaning in the profile.
#[must_use]
pub fn find(number: u8, extended: bool, profile: u16) -> Option<&'static Row> {
    ROWS.iter()
        .find(|row| row.number == number && row.extended == extended && row.profile.is_none_or(|only| only == profile))
}

/// The error for an attached descriptor without rights.
const NO_RIGHT: (Errno, &str) = (Errno::EBADF, "a descriptor that was opened with O_PATH");
const BAD_PD: (Errno, &str) = (Errno::ENOENT, "no such PD in this context");
const BAD_QP: (Errno, &str) = (Errno::ENOENT, "no such QP in this context");
const BAD_CQ: (Errno, &str) = (Errno::ENOENT, "no such CQ in this context");
const BAD_XRCD: (Errno, &str) = (Errno::ENOENT, "no such XRC domain in this context");
const BAD_SRQ: (Errno, &str) = (Errno::ENOENT, "no such SRQ in this context");
const BAD_MR: (Errno, &str) = (Errno::ENOENT, "no such MR in this context");
const BAD_DM: (Errno, &str) = (Errno::ENOENT, "no such device memory in this context");
const BAD_AH: (Errno, &str) = (Errno::ENOENT, "no such AH in this context");
const BAD_PORT: (Errno, &str) = (Errno::EINVAL, "port 0 or above the number of ports");
const FULL: (Errno, &str) = (Errno::ENOMEM, "the device's limit is reached, or no memory");
const ADDRESS: (Errno, &str) = (
    Errno::EINVAL,
    "address vector without GRH, bad port, source GID index out of range or empty, or an IPv4 address and another one",
);

const ACCESS: (Errno, &str) = (Errno::EINVAL, "unknown right, or remote write or atomic without local write");
const START: (Errno, &str) = (Errno::EINVAL, "start and hca_va differ modulo 4096");
const WRAP: (Errno, &str) = (Errno::EINVAL, "length above max_mr_size, or start + length or hca_va + length wraps");
const CHANNEL: (Errno, &str) = (Errno::EINVAL, "comp_channel is neither -1 nor a channel of this context");
const CQE: (Errno, &str) = (Errno::EINVAL, "cqe is 0 or above max_cqe");
const VECTOR: (Errno, &str) = (Errno::EINVAL, "comp_vector not below num_comp_vectors");
const CAPS: (Errno, &str) = (Errno::EINVAL, "a capacity above the device's limit");
const TRANSITION: (Errno, &str) =
    (Errno::EINVAL, "transition not allowed, a required attribute missing, one too many, or a value out of range");
const POST: (Errno, &str) =
    (Errno::EINVAL, "more scatter/gather entries named than sent, wqe_size too small, or too many for the queue");
const POST_STATE: (Errno, &str) = (Errno::EINVAL, "QP state does not allow posting");
const ENGINE: (Errno, &str) = (Errno::EOPNOTSUPP, "the context has sent ENGINE_HELLO");
const INLINE: (Errno, &str) = (Errno::EINVAL, "INLINE, or an opcode that the QP does not have");
const POST_FULL: (Errno, &str) = (Errno::ENOMEM, "the queue is full");
const QP_TYPE: (Errno, &str) = (Errno::EOPNOTSUPP, "a type that the device does not have");

/// The test that asks for every command which is refused.
pub const REFUSAL_TEST: &str = "refused::refused_commands";

/// Every command: legacy, extended, softhca's own.
pub static ROWS: &[Row] = &[
    Row::legacy(0, "GET_CONTEXT", "device::get_context")
        .request::<device::GetContext>()
        .answer::<device::GetContextAnswer>()
        .private_out::<queue::ContextOut>()
        .extras("answer fds: async eventfd, then the region of the context page if its Mapping says so")
        .errors(&[(Errno::EINVAL, "the connection has a context already")]),
    Row::legacy(1, "QUERY_DEVICE", "device::query_device")
        .request::<device::QueryDevice>()
        .answer::<device::QueryDeviceAnswer>(),
    Row::legacy(2, "QUERY_PORT", "device::query_port")
        .request::<device::QueryPort>()
        .answer::<device::QueryPortAnswer>()
        .errors(&[BAD_PORT]),
    Row::legacy(3, "ALLOC_PD", "pd::alloc_pd")
        .request::<pd::AllocPd>()
        .answer::<pd::AllocPdAnswer>()
        .private_out::<queue::PdOut>()
        .errors(&[FULL]),
    Row::legacy(4, "DEALLOC_PD", "pd::dealloc_pd")
        .request::<pd::DeallocPd>()
        .errors(&[BAD_PD, (Errno::EBUSY, "an MR, MW, AH, SRQ or QP is on it")]),
    Row::legacy(5, "CREATE_AH", "ah::create_ah")
        .request::<ah::CreateAh>()
        .answer::<ah::CreateAhAnswer>()
        .errors(&[BAD_PD, ADDRESS, FULL]),
    Row::refused(6, "MODIFY_AH", Errno::ENOSYS),
    Row::refused(7, "QUERY_AH", Errno::ENOSYS),
    Row::legacy(8, "DESTROY_AH", "ah::destroy_ah").request::<ah::DestroyAh>().errors(&[BAD_AH]),
    Row::legacy(9, "REG_MR", "mr::reg_mr")
        .request::<mr::RegMr>()
        .private_in::<queue::MrIn>()
        .answer::<mr::RegMrAnswer>()
        .extras("request fd (proxy engine): the memfd of MrIn")
        .errors(&[
            BAD_PD,
            ACCESS,
            START,
            WRAP,
            NO_RIGHT,
            (Errno::EINVAL, "MrIn: flag and fds disagree, offset not a multiple of 4096, or memfd too short"),
            (Errno::EINVAL, "MrIn DEVICE: beyond the end of the device memory, or not zero-based"),
            FULL,
        ]),
    Row::refused(10, "REG_SMR", Errno::ENOSYS),
    Row::legacy(11, "REREG_MR", "mr::rereg_mr").request::<mr::ReregMr>().answer::<mr::ReregMrAnswer>().errors(&[
        BAD_MR,
        BAD_PD,
        (Errno::EINVAL, "flags 0 or unknown, or the MR is not memory of this process"),
        (Errno::EBUSY, "another context has imported it"),
        ACCESS,
        START,
        WRAP,
    ]),
    Row::refused(12, "QUERY_MR", Errno::ENOSYS),
    Row::legacy(13, "DEREG_MR", "mr::dereg_mr")
        .request::<mr::DeregMr>()
        .errors(&[BAD_MR, (Errno::EBUSY, "another context has imported it")]),
    Row::legacy(14, "ALLOC_MW", "mw::alloc_mw").request::<mr::AllocMw>().answer::<mr::AllocMwAnswer>().errors(&[
        BAD_PD,
        (Errno::EINVAL, "mw_type neither 1 nor 2"),
        FULL,
    ]),
    Row::refused(15, "BIND_MW", Errno::ENOSYS),
    Row::legacy(16, "DEALLOC_MW", "mw::dealloc_mw")
        .request::<mr::DeallocMw>()
        .private_in::<queue::MwIn>()
        .errors(&[(Errno::ENOENT, "no such MW in this context")]),
    Row::legacy(17, "CREATE_COMP_CHANNEL", "cq::create_comp_channel")
        .request::<cq::CreateCompChannel>()
        .answer::<cq::CreateCompChannelAnswer>()
        .extras("answer fd: the channel's eventfd")
        .errors(&[FULL]),
    Row::legacy(18, "CREATE_CQ", "cq::create_cq")
        .request::<cq::CreateCq>()
        .answer::<cq::CreateCqAnswer>()
        .private_out::<queue::CqOut>()
        .extras("answer fd: the region, if the Mapping says so")
        .errors(&[CQE, VECTOR, CHANNEL, FULL]),
    Row::legacy(19, "RESIZE_CQ", "cq::resize_cq")
        .request::<cq::ResizeCq>()
        .answer::<cq::ResizeCqAnswer>()
        .private_out::<queue::CqOut>()
        .extras("answer fd: the region, if the Mapping says so")
        .errors(&[BAD_CQ, CQE, (Errno::EINVAL, "fewer entries than completions that wait in the CQ"), FULL]),
    Row::legacy(20, "DESTROY_CQ", "cq::destroy_cq")
        .request::<cq::DestroyCq>()
        .answer::<cq::DestroyCqAnswer>()
        .errors(&[BAD_CQ, (Errno::EBUSY, "a QP uses it")]),
    Row::legacy(21, "POLL_CQ", "post::poll_cq")
        .request::<cq::PollCq>()
        .answer::<cq::PollCqAnswer>()
        .extras("answer: count records Wc follow; room for ne of them is needed")
        .errors(&[BAD_CQ, (Errno::ENOSPC, "less room than for ne completions"), ENGINE]),
    Row::refused(22, "PEEK_CQ", Errno::ENOSYS),
    Row::legacy(23, "REQ_NOTIFY_CQ", "post::req_notify_cq").request::<cq::ReqNotifyCq>().errors(&[BAD_CQ, ENGINE]),
    Row::legacy(24, "CREATE_QP", "qp::create_qp")
        .request::<qp::CreateQp>()
        .answer::<qp::CreateQpAnswer>()
        .private_out::<queue::QpOut>()
        .extras("answer fd: the region, if the Mapping says so")
        .errors(&[BAD_PD, BAD_CQ, BAD_SRQ, (Errno::EINVAL, "the SRQ is on another PD"), CAPS, QP_TYPE, FULL]),
    Row::legacy(25, "QUERY_QP", "qp::query_qp")
        .request::<qp::QueryQp>()
        .answer::<qp::QueryQpAnswer>()
        .errors(&[BAD_QP]),
    Row::legacy(26, "MODIFY_QP", "qp::modify_qp").request::<qp::ModifyQp>().errors(&[BAD_QP, TRANSITION, ADDRESS]),
    Row::legacy(27, "DESTROY_QP", "qp::destroy_qp")
        .request::<qp::DestroyQp>()
        .answer::<qp::DestroyQpAnswer>()
        .errors(&[BAD_QP, (Errno::EBUSY, "it is attached to a multicast group")]),
    Row::legacy(28, "POST_SEND", "post::post_send")
        .request::<post::Post>()
        .answer::<post::PostAnswer>()
        .extras("request: wr_count records SendWr (of an XRC initiator with XrcSend), then sge_count records Sge")
        .errors(&[BAD_QP, BAD_AH, POST, POST_STATE, INLINE, POST_FULL, ENGINE]),
    Row::legacy(29, "POST_RECV", "post::post_recv")
        .request::<post::Post>()
        .answer::<post::PostAnswer>()
        .extras("request: wr_count records RecvWr, then sge_count records Sge")
        .errors(&[BAD_QP, POST, POST_STATE, POST_FULL, ENGINE]),
    Row::legacy(30, "ATTACH_MCAST", "mcast::attach_mcast").request::<mcast::AttachMcast>().errors(&[
        BAD_QP,
        (Errno::EINVAL, "the QP is not UD, or the GID is not a multicast GID"),
        FULL,
    ]),
    Row::legacy(31, "DETACH_MCAST", "mcast::detach_mcast")
        .request::<mcast::AttachMcast>()
        .errors(&[BAD_QP, (Errno::EINVAL, "the QP is not in the group")]),
    Row::legacy(32, "CREATE_SRQ", "srq::create_srq")
        .request::<srq::CreateSrq>()
        .answer::<srq::CreateSrqAnswer>()
        .private_out::<queue::SrqOut>()
        .extras("answer fd: the region, if the Mapping says so")
        .errors(&[BAD_PD, (Errno::EINVAL, "max_wr 0, max_wr or max_sge above the limit, or srq_limit above max_wr"), FULL]),
    Row::legacy(33, "MODIFY_SRQ", "srq::modify_srq")
        .request::<srq::ModifySrq>()
        .private_out::<queue::SrqOut>()
        .extras("there is an answer only with MAX_WR; answer fd: the region, if the Mapping says so")
        .errors(&[
            BAD_SRQ,
            (
                Errno::EINVAL,
                "attr_mask 0 or unknown, limit above max_wr, or max_wr 0, above the limit or below what waits",
            ),
            FULL,
        ]),
    Row::legacy(34, "QUERY_SRQ", "srq::query_srq")
        .request::<srq::QuerySrq>()
        .answer::<srq::QuerySrqAnswer>()
        .errors(&[BAD_SRQ]),
    Row::legacy(35, "DESTROY_SRQ", "srq::destroy_srq")
        .request::<srq::DestroySrq>()
        .answer::<srq::DestroySrqAnswer>()
        .errors(&[BAD_SRQ, (Errno::EBUSY, "a QP uses it")]),
    Row::legacy(36, "POST_SRQ_RECV", "post::post_srq_recv")
        .request::<post::Post>()
        .answer::<post::PostAnswer>()
        .extras("request: wr_count records RecvWr, then sge_count records Sge")
        .errors(&[BAD_SRQ, POST, POST_FULL, ENGINE]),
    Row::legacy(37, "OPEN_XRCD", "xrc::open_xrcd")
        .request::<xrc::OpenXrcd>()
        .answer::<xrc::OpenXrcdAnswer>()
        .private_out::<xrc::XrcdOut>()
        .extras("request fd: the file, unless fd is -1")
        .errors(&[
            (Errno::EBADF, "fd is not -1, and no file is attached, or the file was opened with O_PATH"),
            (Errno::EAGAIN, "the file has no domain yet, and oflags has no O_CREAT"),
            (Errno::EINVAL, "the file has a domain, and oflags has O_EXCL"),
            FULL,
        ])
        .mainline(),
    Row::legacy(38, "CLOSE_XRCD", "xrc::close_xrcd")
        .request::<xrc::CloseXrcd>()
        .errors(&[BAD_XRCD, (Errno::EBUSY, "an SRQ or a QP was created or opened through this handle")])
        .mainline(),
    Row::legacy(39, "CREATE_XSRQ", "xrc::create_xsrq")
        .request::<xrc::CreateXsrq>()
        .answer::<srq::CreateSrqAnswer>()
        .private_out::<queue::SrqOut>()
        .extras("answer fd: the region, if the Mapping says so")
        .errors(&[
            BAD_PD,
            BAD_XRCD,
            BAD_CQ,
            (Errno::EINVAL, "max_wr 0, max_wr or max_sge above the limit, or srq_limit above max_wr, or an unknown type"),
            (Errno::EOPNOTSUPP, "tag matching"),
            FULL,
        ])
        .mainline(),
    Row::legacy(40, "OPEN_QP", "xrc::open_qp")
        .request::<xrc::OpenQp>()
        .answer::<qp::CreateQpAnswer>()
        .errors(&[BAD_XRCD, (Errno::EINVAL, "qp_type not XRC_TGT, or no such QP in the domain"), FULL])
        .mainline(),
    Row::refused(37, "CREATE_XRC_SRQ", Errno::EOPNOTSUPP)
        .request::<xrc::CreateXrcSrq>()
        .answer::<srq::CreateSrqAnswer>()
        .ofed(),
    Row::refused(38, "OPEN_XRC_DOMAIN", Errno::EOPNOTSUPP)
        .request::<xrc::OpenXrcDomain>()
        .answer::<xrc::OpenXrcdAnswer>()
        .ofed(),
    Row::refused(39, "CLOSE_XRC_DOMAIN", Errno::EOPNOTSUPP).request::<xrc::CloseXrcDomain>().ofed(),
    Row::refused(40, "CREATE_XRC_RCV_QP", Errno::EOPNOTSUPP)
        .request::<xrc::CreateXrcRcvQp>()
        .answer::<xrc::CreateXrcRcvQpAnswer>()
        .ofed(),
    Row::refused(41, "MODIFY_XRC_RCV_QP", Errno::EOPNOTSUPP).request::<xrc::ModifyXrcRcvQp>().ofed(),
    Row::refused(42, "QUERY_XRC_RCV_QP", Errno::EOPNOTSUPP)
        .request::<xrc::QueryXrcRcvQp>()
        .answer::<qp::QueryQpAnswer>()
        .ofed(),
    Row::refused(43, "REG_XRC_RCV_QP", Errno::EOPNOTSUPP).request::<xrc::RegXrcRcvQp>().ofed(),
    Row::refused(44, "UNREG_XRC_RCV_QP", Errno::EOPNOTSUPP).request::<xrc::RegXrcRcvQp>().ofed(),
    Row::legacy(45, "QUERY_GID", "device::query_gid")
        .request::<device::QueryGid>()
        .answer::<device::QueryGidAnswer>()
        .errors(&[BAD_PORT, (Errno::EINVAL, "index outside the table")]),
    Row::legacy(46, "QUERY_PKEY", "device::query_pkey")
        .request::<device::QueryPkey>()
        .answer::<device::QueryPkeyAnswer>()
        .errors(&[BAD_PORT, (Errno::EINVAL, "index outside the table")]),
    Row::extended(1, "EX_QUERY_DEVICE", "extended::ex_query_device")
        .request::<device::ExQueryDevice>()
        .answer::<device::ExQueryDeviceAnswer>()
        .room_at_least(device::EX_QUERY_DEVICE_ANSWER_MIN)
        .errors(&[(Errno::EINVAL, "comp_mask or reserved not 0")]),
    Row::extended(18, "EX_CREATE_CQ", "extended::ex_create_cq")
        .request::<cq::ExCreateCq>()
        .answer::<cq::ExCreateCqAnswer>()
        .private_out::<queue::CqOut>()
        .extras("answer fd: the region, if the Mapping says so")
        .errors(&[CQE, VECTOR, CHANNEL, (Errno::EOPNOTSUPP, "comp_mask, a flag or reserved not 0"), FULL]),
    Row::extended(24, "EX_CREATE_QP", "extended::ex_create_qp")
        .request::<qp::ExCreateQp>()
        .at_least(qp::EX_CREATE_QP_MIN)
        .answer::<qp::ExCreateQpAnswer>()
        .private_out::<queue::QpOut>()
        .extras("answer fd: the region, if the Mapping says so")
        .errors(&[
            BAD_PD,
            BAD_CQ,
            BAD_SRQ,
            (Errno::EINVAL, "the SRQ is on another PD"),
            CAPS,
            QP_TYPE,
            (Errno::EOPNOTSUPP, "comp_mask or a create flag that the device does not have"),
            FULL,
        ]),
    Row::extended(26, "EX_MODIFY_QP", "extended::ex_modify_qp")
        .request::<qp::ExModifyQp>()
        .at_least(qp::EX_MODIFY_QP_MIN)
        .answer::<qp::ExModifyQpAnswer>()
        .errors(&[
            BAD_QP,
            TRANSITION,
            ADDRESS,
            (Errno::EINVAL, "a rate limit beyond `qp::RATE_LIMIT_MAX`"),
            (Errno::EOPNOTSUPP, "a rate limit on an iWARP device"),
        ]),
    Row::refused_extended(50, "EX_CREATE_FLOW").request::<wq::ExCreateFlow>().answer::<wq::ExCreateFlowAnswer>(),
    Row::refused_extended(51, "EX_DESTROY_FLOW").request::<wq::ExDestroyFlow>(),
    Row::refused_extended(52, "EX_CREATE_WQ").request::<wq::ExCreateWq>().answer::<wq::ExCreateWqAnswer>(),
    Row::refused_extended(53, "EX_MODIFY_WQ").request::<wq::ExModifyWq>(),
    Row::refused_extended(54, "EX_DESTROY_WQ").request::<wq::ExDestroyWq>().answer::<wq::ExDestroyWqAnswer>(),
    Row::refused_extended(55, "EX_CREATE_RWQ_IND_TBL")
        .request::<wq::ExCreateRwqIndTbl>()
        .answer::<wq::ExCreateRwqIndTblAnswer>(),
    Row::refused_extended(56, "EX_DESTROY_RWQ_IND_TBL").request::<wq::ExDestroyRwqIndTbl>(),
    Row::extended(57, "EX_MODIFY_CQ", "extended::ex_modify_cq")
        .request::<cq::ExModifyCq>()
        .errors(&[BAD_CQ, (Errno::EOPNOTSUPP, "attr_mask other than 1")]),
    Row::extended(192, "ENGINE_HELLO", "private::engine_hello")
        .request::<private::EngineHello>()
        .answer::<private::EngineHelloAnswer>()
        .extras("request fds: wake word memfd, eventfd; answer fds: board, push socket")
        .errors(&[
            NO_RIGHT,
            (
                Errno::EINVAL,
                "not two fds, the wake word not a memfd of one page (4096 bytes) that is sealed against shrinking and growing, the other one no \
                 eventfd, or a flag set",
            ),
            (Errno::EEXIST, "the context has an engine already, its own or the agent's"),
        ]),
    Row::extended(193, "LANE_OPEN", "private::lane_open")
        .request::<private::LaneOpen>()
        .answer::<private::LaneOut>()
        .extras("answer fds: lane memfd, eventfd that wakes the caller, eventfd that wakes the peer, peer's wake word")
        .errors(&[(Errno::ESRCH, "no such engine"), (Errno::EINVAL, "no ENGINE_HELLO, or lane index out of range"), FULL]),
    Row::extended(194, "MCAST_RESOLVE", "private::mcast_resolve")
        .request::<private::McastResolve>()
        .answer::<private::McastResolveAnswer>()
        .errors(&[
            (Errno::EINVAL, "max above 64, or not a multicast GID"),
            (Errno::EAGAIN, "the agent looks at the switches' tables: ask again"),
        ]),
    Row::extended(195, "CHANNEL_DESTROY", "private::channel_destroy")
        .request::<private::ChannelDestroy>()
        .errors(&[(Errno::EBADF, "no such channel in this context"), (Errno::EBUSY, "a CQ uses it")]),
    Row::extended(196, "GID_ENTRY", "private::gid_entry")
        .request::<private::GidEntry>()
        .answer::<private::GidEntryAnswer>()
        .errors(&[BAD_PORT, (Errno::EINVAL, "index outside the table"), (Errno::ENODATA, "the entry is empty")]),
    Row::extended(197, "WIRE_OPEN", "wire::wire_open")
        .request::<wire::WireOpen>()
        .answer::<wire::WireOut>()
        .extras("answer fds: lane memfd, eventfd that wakes the agent; if SHARED, the lease page's memfd")
        .errors(&[
            (Errno::EOPNOTSUPP, "the agent has no wire"),
            (Errno::EINVAL, "no ENGINE_HELLO, or a flag set"),
            (Errno::EEXIST, "the engine has its wire lane already"),
        ]),
    Row::extended(198, "WIRE_SOCKETS", "wire::wire_sockets")
        .request::<wire::WireSockets>()
        .answer::<wire::WireSocketsAnswer>()
        .extras("answer fds: count sockets")
        .errors(&[(Errno::EPERM, "no WIRE_OPEN, or its answer was not SHARED"), (Errno::EINVAL, "max above 6")]),
    Row::extended(199, "DIRECT_ASK", "private::direct_ask")
        .request::<private::DirectAsk>()
        .errors(&[(Errno::EINVAL, "no ENGINE_HELLO")]),
    Row::extended(200, "DIRECT_GRANT", "private::direct_grant")
        .request::<private::DirectGrant>()
        .extras("request fds: the grant table's memfd, the file that contains the memory")
        .errors(&[(Errno::EINVAL, "no ENGINE_HELLO, or not two fds")]),
    Row::extended(201, "PATH_RESOLVE", "private::path_resolve")
        .request::<private::PathResolve>()
        .answer::<private::PathResolveAnswer>()
        .errors(&[
            (Errno::EINVAL, "no ENGINE_HELLO"),
            (Errno::EAGAIN, "the agent looks at the switches' tables: ask again"),
        ]),
    Row::extended(202, "RESIZE_UNDO", "private::resize_undo").request::<private::ResizeUndo>().errors(&[
        (Errno::ENOENT, "no such CQ or SRQ in this context"),
        (Errno::EINVAL, "it was not resized, or is_srq is neither 0 nor 1"),
    ]),
    Row::extended(203, "VIOLATION", "private::violation")
        .request::<private::Violation>()
        .errors(&[BAD_PORT, (Errno::EINVAL, "no such kind")]),
    Row::extended(208, "ALLOC_DM", "dm::alloc_dm")
        .request::<dm::AllocDm>()
        .answer::<dm::DmOut>()
        .extras("answer fd: the memory's memfd")
        .errors(&[(Errno::EINVAL, "length 0, reserved not 0, or an alignment above 4096"), FULL]),
    Row::extended(209, "FREE_DM", "dm::free_dm")
        .request::<dm::FreeDm>()
        .errors(&[BAD_DM, (Errno::EBUSY, "an MR is on it")]),
    Row::extended(210, "IMPORT_CONTEXT", "dm::import_context")
        .request::<dm::ImportContext>()
        .answer::<dm::ImportContextAnswer>()
        .extras("request fd: the region of the other context's page")
        .errors(&[
            NO_RIGHT,
            (Errno::EINVAL, "not one fd, a flag set, or the fd does not belong to a context of this device"),
            (Errno::EEXIST, "the context has imported one already"),
        ]),
    Row::extended(211, "IMPORT_PD", "dm::import_pd").request::<dm::Import>().answer::<dm::ImportPdAnswer>().errors(&[
        (Errno::EINVAL, "no IMPORT_CONTEXT"),
        (Errno::ENOENT, "no such PD in the other context"),
        FULL,
    ]),
    Row::extended(212, "IMPORT_MR", "dm::import_mr")
        .request::<dm::ImportMr>()
        .answer::<dm::ImportMrAnswer>()
        .extras("answer fd: of device memory, its memfd")
        .errors(&[
            BAD_PD,
            (Errno::ENOENT, "no such MR in the other context"),
            (Errno::EINVAL, "the MR is not on the PD from which this PD was imported"),
            (Errno::EOPNOTSUPP, "the memory is another process's"),
            FULL,
        ]),
    Row::extended(213, "IMPORT_DM", "dm::import_dm")
        .request::<dm::Import>()
        .answer::<dm::DmOut>()
        .extras("answer fd: the memory's memfd")
        .errors(&[
            (Errno::EINVAL, "no IMPORT_CONTEXT"),
            (Errno::ENOENT, "no such device memory in the other context"),
            FULL,
        ]),
    Row::extended(224, "XRC_FIND", "target::xrc_find")
        .request::<target::XrcFind>()
        .answer::<target::XrcFindAnswer>()
        .errors(&[(Errno::ENOENT, "no such target QP in this context, or no such SRQ in its domain")]),
    Row::extended(225, "XRC_ADOPT", "target::xrc_adopt")
        .request::<target::XrcAdopt>()
        .answer::<target::XrcAdoptAnswer>()
        .extras("answer fd: the region, if the Mapping says so")
        .errors(&[(Errno::EINVAL, "the QP was not offered to this context"), FULL]),
    Row::extended(226, "XRC_EVENT", "target::xrc_event")
        .request::<target::XrcEvent>()
        .errors(&[(Errno::ENOENT, "no such target QP in this context"), (Errno::EINVAL, "the event is not one of a QP")]),
    Row::extended(232, "STREAM_TAKE", "stream::stream_take")
        .request::<stream::StreamTake>()
        .answer::<stream::StreamOut>()
        .extras("answer fd: the connected TCP socket")
        .errors(&[
            BAD_QP,
            (Errno::ENOTCONN, "the connection manager has made no connection for the QP"),
            (Errno::EMFILE, "the user has its share of descriptors in the agent; the connection stays"),
        ]),
    Row::extended(233, "STREAM_END", "stream::stream_end").request::<stream::StreamEnd>(),
];
