//! Refused calls, and the way in which each function reports the refusal.

use super::*;
use crate::layout::{DeviceAttrEx, Ece, GidEntry, PortAttr, QpRateLimitAttr, RecvWr, SendWr, Sge};
use crate::{address, ece, import, post, srq};
use libc::{EBADF, EBUSY, EFAULT, EINVAL, ENODATA, ENOENT, ENOMEM, EOPNOTSUPP};
use std::ptr::null_mut;

#[test]
fn ports_and_tables() {
    let device = Device::open();
    let (c, mut gid, mut pkey) = (device.context, Gid([0; 16]), 0u16);
    for port in [0, 2] {
        let mut attr = PortAttr::zeroed();
        assert_eq!(call!(query::query_port(c, port, &raw mut attr, 52)), EINVAL);
        assert_eq!((call!(query::query_gid(c, port, 0, &raw mut gid)), errno()), (-1, EINVAL));
    }
    for index in [-1, 64] {
        assert_eq!((call!(query::query_gid(c, 1, index, &raw mut gid)), errno()), (-1, EINVAL));
        assert_eq!((call!(query::query_pkey(c, 1, index, &raw mut pkey)), errno()), (-1, EINVAL));
    }
    assert_eq!((call!(query::query_gid(c, 1, 63, &raw mut gid)), gid), (0, Gid([0; 16])));
    assert_eq!(call!(query::pkey_index(c, 1, 0xffff)), 0);
    assert_eq!((call!(query::pkey_index(c, 1, 0x3412)), errno()), (-1, ENOENT));
    assert_eq!((call!(query::query_gid(null_mut(), 1, 0, &raw mut gid)), errno()), (-1, EINVAL));
}

#[test]
fn gid_entries() {
    let device = Device::open();
    let (c, mut entry) = (device.context, GidEntry::zeroed());
    assert_eq!(call!(query::query_gid_ex(c, 1, 0, &raw mut entry, 0, 32)), 0);
    assert_eq!((entry.gid, entry.gid_index, entry.port_num, entry.gid_type), (device.gid(), 0, 1, 2));
    assert_eq!(call!(query::query_gid_ex(c, 1, 63, &raw mut entry, 0, 32)), ENODATA);
    assert_eq!(call!(query::query_gid_ex(c, 1, 64, &raw mut entry, 0, 32)), EINVAL);
    assert_eq!(call!(query::query_gid_ex(c, 1, 0, &raw mut entry, 1, 32)), EINVAL);
    let mut table = [GidEntry::zeroed(); 64];
    let count = call!(query::query_gid_table(c, table.as_mut_ptr(), 64, 0, 32));
    assert!(count >= 1, "{count}");
    assert_eq!(call!(query::query_gid_table(c, table.as_mut_ptr(), 0, 0, 32)), -(EINVAL as isize));
    let mut kind = 9;
    assert_eq!((call!(query::query_gid_type(c, 1, 0, &raw mut kind)), kind), (0, 1));
    assert_eq!((call!(query::query_gid_type(c, 1, 63, &raw mut kind)), kind), (0, 0));
    assert_eq!(call!(query::query_gid_type(c, 1, 64, &raw mut kind)), -1);
}

#[test]
fn structs_are_filled_to_the_size_that_the_program_knows() {
    let device = Device::open();
    let mut attr = DeviceAttrEx { phys_port_cnt_ex: 77, ..DeviceAttrEx::zeroed() };
    assert_eq!(call!(query::query_device_ex(device.context, std::ptr::null(), &raw mut attr, 396)), 0);
    assert_eq!((attr.orig_attr.phys_port_cnt, attr.phys_port_cnt_ex), (1, 77));
    assert_ne!(attr.orig_attr.sys_image_guid, 0);
    assert_eq!(call!(query::query_device_ex(device.context, std::ptr::null(), &raw mut attr, 8)), EINVAL);
    let mut port = PortAttr { active_speed_ex: 77, ..PortAttr::zeroed() };
    assert_eq!(call!(query::query_port(device.context, 1, &raw mut port, 52)), 0);
    assert_eq!((port.state, port.link_layer, port.active_speed_ex), (4, 2, 77));
    let mut port = PortAttr { port_cap_flags2: 77, ..PortAttr::zeroed() };
    assert_eq!(call!(query::query_port_compat(device.context, 1, &raw mut port)), 0);
    assert_eq!(port.port_cap_flags2, 77);
}

#[test]
fn memory_that_cannot_be_registered() {
    let device = Device::open();
    let start: *mut std::ffi::c_void = device.memory.as_ptr().cast_mut().cast();
    let refused = |addr, length, access| (call!(memory::reg(device.pd, addr, length, access)).is_null(), errno());
    assert_eq!(refused(null_mut(), 4096, 1), (true, EFAULT));
    assert_eq!(refused(start, 1 << 60, 1), (true, EFAULT));
    assert_eq!(refused(start, 4096, 2), (true, EINVAL), "remote write without local write");
    assert_eq!(refused(start, 4096, 1 << 12), (true, EINVAL), "unknown flag");
    assert!(memory::reg_dmabuf(device.pd, 0, 4096, 0, 0, 1).is_null());
    assert_eq!(errno(), EOPNOTSUPP);

    let rereg = |flags, addr, access| call!(memory::rereg(device.mr, flags, null_mut(), addr, 4096, access));
    assert_eq!((rereg(0, null_mut(), 0), errno()), (-1, EINVAL));
    assert_eq!((rereg(8, null_mut(), 0), errno()), (-1, EINVAL));
    assert_eq!((rereg(1, null_mut(), 0), errno()), (-1, EINVAL));
    assert_eq!((rereg(4, null_mut(), 2), errno()), (-4, EINVAL));
    assert_eq!(rereg(4, null_mut(), 1), 0);
}

#[test]
fn transitions_and_attributes() {
    let device = Device::open();
    let qp = device.qp(abi::qp::kind::RC);
    let mut attr = QpAttr { qp_state: 3, port_num: 1, ..QpAttr::zeroed() };
    let modify = |attr: &mut QpAttr, mask: u32| call!(qp::modify(qp, attr, mask.cast_signed()));
    assert_eq!(modify(&mut attr, attr::STATE), EINVAL, "RESET to RTS");
    attr.qp_state = 1;
    assert_eq!(modify(&mut attr, attr::STATE), EINVAL, "required attributes missing");
    let mask = attr::STATE | attr::PKEY_INDEX | attr::PORT | attr::ACCESS_FLAGS;
    attr.port_num = 2;
    assert_eq!(modify(&mut attr, mask), EINVAL, "no such port");
    (attr.port_num, attr.pkey_index) = (1, 1);
    assert_eq!(modify(&mut attr, mask), EINVAL, "no such P_Key index");
    attr.pkey_index = 0;
    assert_eq!(modify(&mut attr, mask), 0);
    assert_eq!(object::get!(qp, state), 1);
    attr.qp_state = 0;
    assert_eq!(modify(&mut attr, attr::STATE), 0);
    assert_eq!(object::get!(qp, state), 0);
    assert_eq!(call!(qp::destroy(qp)), 0);
}

#[test]
fn queue_pairs_that_cannot_be_made() {
    let device = Device::open();
    let refused = |mut init: QpInitAttr| (call!(qp::create(device.pd, &raw mut init)).is_null(), errno());
    let good = device.init(abi::qp::kind::RC);
    for (qp_type, error) in [(8, EOPNOTSUPP), (10, EINVAL), (255, EOPNOTSUPP), (1, EINVAL), (77, EINVAL)] {
        assert_eq!(refused(QpInitAttr { qp_type, ..good }), (true, error), "type {qp_type}");
    }
    assert_eq!(refused(QpInitAttr { send_cq: null_mut(), ..good }), (true, EINVAL));
    let too_many = QpCap { max_send_wr: 1 << 20, ..good.cap };
    assert_eq!(refused(QpInitAttr { cap: too_many, ..good }), (true, EINVAL));
    let too_wide = QpCap { max_send_sge: 1000, ..good.cap };
    assert_eq!(refused(QpInitAttr { cap: too_wide, ..good }), (true, EINVAL));
    assert!(call!(qp::create(device.pd, null_mut())).is_null());
    assert_eq!(errno(), EINVAL);
}

#[test]
fn requests_that_cannot_be_posted() {
    let device = Device::open();
    let qp = device.qp(abi::qp::kind::RC);
    let mut sges: [Sge; 3] = std::array::from_fn(|_| device.element(0, 16));
    let mut send = SendWr { sg_list: sges.as_mut_ptr(), num_sge: 1, opcode: 2, ..SendWr::zeroed() };
    let mut bad = null_mut();
    assert_eq!(call!(post::send(qp, &raw mut send, &raw mut bad)), EINVAL, "in RESET");
    assert_eq!(bad, &raw mut send);
    let recv = RecvWr { sg_list: sges.as_mut_ptr(), num_sge: 1, ..RecvWr::zeroed() };
    let mut list = [recv; 6];
    let mut bad_recv = null_mut();
    assert_eq!(call!(post::recv(qp, list.as_mut_ptr(), &raw mut bad_recv)), EINVAL, "in RESET");
    device.connect(qp, object::get!(qp, qp_num));

    let next: Vec<*mut RecvWr> = (1..6).map(|index| &raw mut list[index]).collect();
    for (wr, next) in list.iter_mut().zip(next) {
        wr.next = next;
    }
    assert_eq!(call!(post::recv(qp, list.as_mut_ptr(), &raw mut bad_recv)), ENOMEM, "six into four");
    assert_eq!(bad_recv, &raw mut list[4]);

    for (num_sge, opcode, why) in
        [(3, 2, "too many elements"), (-1, 2, "a negative count"), (1, 8, "BIND_MW"), (1, 77, "no opcode")]
    {
        (send.num_sge, send.opcode) = (num_sge, opcode);
        assert_eq!(call!(post::send(qp, &raw mut send, &raw mut bad)), EINVAL, "{why}");
    }
    (send.num_sge, send.opcode, send.send_flags) = (1, 2, abi::post::send_flags::INLINE);
    let mut long = device.element(0, 33);
    send.sg_list = &raw mut long;
    assert_eq!(call!(post::send(qp, &raw mut send, &raw mut bad)), EINVAL, "more than fits inline");
    assert_eq!(call!(qp::destroy(qp)), 0);
}

#[test]
fn destroying_an_object_in_use_returns_ebusy() {
    let device = Device::open();
    let mut init = crate::layout::SrqInitAttr::zeroed();
    (init.attr.max_wr, init.attr.max_sge) = (4, 1);
    let shared = call!(srq::create(device.pd, &raw mut init));
    let mut with = QpInitAttr { srq: shared, ..device.init(abi::qp::kind::RC) };
    let qp = call!(qp::create(device.pd, &raw mut with));
    assert_eq!(with.cap.max_recv_wr, 0, "receives come from the SRQ");
    assert_eq!(call!(pd::dealloc(device.pd)), EBUSY);
    assert_eq!(call!(cq::destroy(device.cq)), EBUSY);
    assert_eq!(call!(srq::destroy(shared)), EBUSY);
    assert_eq!(call!(qp::destroy(qp)), 0);
    assert_eq!(call!(srq::destroy(shared)), 0);
    let channel = channel_of(&device);
    let notified = call!(cq::create(device.context, 4, null_mut(), channel, 0));
    assert_eq!(call!(channel::destroy(channel)), EBUSY);
    assert_eq!(call!(cq::destroy(notified)), 0);
    assert_eq!(call!(channel::destroy(channel)), 0);
}

#[test]
fn unsupported_calls_return_their_documented_errno() {
    let device = Device::open();
    for (fd, error) in [(-1, EBADF), (object::get!(device.context, async_fd), EINVAL)] {
        assert!(call!(import::import_device(fd)).is_null());
        assert_eq!(errno(), error, "of no device");
    }
    assert!(call!(import::import_pd(device.context, 1)).is_null());
    assert_eq!(errno(), EINVAL, "the context has imported no other");
    // Raw packets and a vendor's own QP type, steering and hashing, tag matching.
    for qp_type in [abi::qp::kind::RAW_PACKET, abi::qp::kind::DRIVER] {
        let mut init = device.init(qp_type);
        assert!(call!(qp::create(device.pd, &raw mut init)).is_null());
        assert_eq!(errno(), EOPNOTSUPP, "QP type {qp_type}");
    }
    let verbs = device.context.wrapping_byte_sub(std::mem::offset_of!(crate::layout::VerbsContext, context));
    let verbs = verbs.cast::<crate::layout::VerbsContext>();
    // For an operation that is NULL, the inline functions of `verbs.h` return EOPNOTSUPP.
    for op in [
        object::get!(verbs, ibv_create_flow),
        object::get!(verbs, ibv_destroy_flow),
        object::get!(verbs, create_flow_action_esp),
        object::get!(verbs, create_wq),
        object::get!(verbs, create_rwq_ind_table),
        object::get!(verbs, post_srq_ops),
        object::get!(verbs, create_counters),
    ] {
        assert!(op.is_null());
    }
    let mut tags = crate::layout::SrqInitAttrEx { comp_mask: 1 | 2, srq_type: 2, pd: device.pd, ..Zeroable::zeroed() };
    assert!(call!(crate::xrc::create_srq(device.context, &raw mut tags)).is_null());
    assert_eq!(errno(), EOPNOTSUPP, "tag matching");
    let mut facts = DeviceAttrEx::zeroed();
    let room = size_of::<DeviceAttrEx>();
    assert_eq!(call!(query::query_device_ex(device.context, std::ptr::null(), &raw mut facts, room)), 0);
    let DeviceAttrEx { tm_caps, rss_caps, tso_caps, .. } = facts;
    assert_eq!((tm_caps.max_num_tags, rss_caps.supported_qpts, tso_caps.max_tso, facts.raw_packet_caps), (0, 0, 0, 0));
    // ATOMIC WRITE and FLUSH are offered, and so is moderation; persistence is not.
    assert_eq!(facts.device_cap_flags_ex >> 38 & 7, 0b101);
    assert_eq!((facts.cq_mod_caps.max_cq_count, facts.cq_mod_caps.max_cq_period), (u16::MAX, u16::MAX));
    // Windows: type 2B, which excludes 2A.
    assert_eq!(facts.orig_attr.device_cap_flags >> 23 & 3, 0b10);
    let mut local = crate::layout::AhAttr { port_num: 1, ..crate::layout::AhAttr::zeroed() };
    assert!(call!(address::create(device.pd, &raw mut local)).is_null(), "RoCE needs a GRH");
    assert_eq!(errno(), EINVAL);
}

#[test]
fn rates() {
    let device = Device::open();
    let mut facts = DeviceAttrEx::zeroed();
    assert_eq!(
        call!(query::query_device_ex(device.context, std::ptr::null(), &raw mut facts, size_of::<DeviceAttrEx>())),
        0
    );
    let caps = facts.packet_pacing_caps;
    // RC, UC, UD and XRC initiators.
    assert_eq!((caps.qp_rate_limit_min, caps.supported_qpts), (1, 1 << 2 | 1 << 3 | 1 << 4 | 1 << 9));
    let qp = device.loopback();
    let rate = |qp| {
        let (mut attr, mut init) = (QpAttr::zeroed(), crate::layout::QpInitAttr::zeroed());
        assert_eq!(call!(qp::query(qp, &raw mut attr, 1 << 25, &raw mut init)), 0);
        attr.rate_limit
    };
    let set = |rate_limit, mask| {
        let mut paced = QpAttr { rate_limit, ..QpAttr::zeroed() };
        call!(qp::modify(qp, &raw mut paced, mask))
    };
    assert_eq!((set(1000, 1 << 25), rate(qp)), (0, 1000));
    assert_eq!((set(caps.qp_rate_limit_max, 1 << 25), set(caps.qp_rate_limit_max + 1, 1 << 25)), (0, EINVAL));
    assert_eq!((set(5, 1 << 26), set(5, 1 << 21)), (EOPNOTSUPP, EOPNOTSUPP), "attributes that nobody knows");
    let of = |rate_limit, max_burst_sz, typical_pkt_sz, comp_mask| {
        let mut attr = QpRateLimitAttr { rate_limit, max_burst_sz, typical_pkt_sz, comp_mask };
        call!(qp::modify_rate_limit(qp, &raw mut attr))
    };
    assert_eq!((of(2000, 0, 0, 0), rate(qp)), (0, 2000));
    assert_eq!((of(3000, 8192, 1024, 0), rate(qp)), (0, 3000));
    assert_eq!((of(0, 1, 0, 0), of(0, 0, 1, 0), of(5, 0, 0, 1)), (EINVAL, EINVAL, EINVAL));
    assert_eq!((of(caps.qp_rate_limit_max + 1, 0, 0, 0), rate(qp)), (EINVAL, 3000));
    assert_eq!((of(0, 0, 0, 0), rate(qp)), (0, 0));
    assert_eq!(call!(qp::modify_rate_limit(qp, null_mut())), EINVAL);
    assert_eq!(call!(qp::destroy(qp)), 0);
}

#[test]
fn connection_options() {
    let device = Device::open();
    let qp = device.loopback();
    let mut own = Ece { vendor_id: 9, options: 9, comp_mask: 9 };
    assert_eq!(call!(ece::query(qp, &raw mut own)), 0);
    assert_eq!((own.vendor_id, own.options, own.comp_mask), (0x53_4843, 0, 0));
    let set = |vendor_id, options, comp_mask| {
        let mut wanted = Ece { vendor_id, options, comp_mask };
        (call!(ece::set(qp, &raw mut wanted)), wanted.options)
    };
    assert_eq!((set(own.vendor_id, 0, 0), set(own.vendor_id, 7, 0)), ((0, 0), (0, 0)), "what is accepted");
    assert_eq!((set(own.vendor_id, 0, 1), set(0x2c9, 1, 0), set(0, 0, 0)), ((EINVAL, 0), (EINVAL, 1), (EINVAL, 0)));
    assert_eq!((call!(ece::set(qp, null_mut())), call!(ece::query(qp, null_mut()))), (EINVAL, EINVAL));
    assert_eq!(call!(qp::destroy(qp)), 0);
}
