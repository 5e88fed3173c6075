//! An agent whose memory runs out refuses commands and continues.
//!
//! The allocator of this process counts the agent's allocations during a command. Allocations
//! beyond a budget fail, for every small budget. One failed allocation that the agent does not
//! expect ends the process, and so this test.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use abi::Errno;
use abi::ah::{AhAttr, CreateAh};
use abi::command::{legacy, number};
use abi::cq::CreateCq;
use abi::device::{GetContext, GetContextAnswer};
use abi::layout::Record;
use abi::pd::AllocPd;
use abi::qp::kind;
use abi::ucma::address::{ResolveAddr, ResolveRoute};
use abi::ucma::connection::{
    Accept, ConnParam, Connect, Disconnect, EventAnswer, GetEvent, JoinMcast, Listen, WriteCmEvent, event,
};
use abi::ucma::id::{Channel as Token, ChannelAnswer, CreateId, DestroyId, MigrateId};
use abi::ucma::sockaddr::Sockaddr;
use abi::ucma::{build, command, port_space};
use agent::config::WireMode;
use agent::{Config, Stepped};
use engine::{Control, Network, Outlet, Simulated};

const ADDRESS: [u8; 4] = [10, 0, 0, 1];
const PORT: u16 = 7471;

thread_local! {
    /// Bytes that may still be allocated, while they are counted.
    static LEFT: Cell<isize> = const { Cell::new(0) };
    static COUNTS: Cell<bool> = const { Cell::new(false) };
}

struct Budget;

#[global_allocator]
static BUDGET: Budget = Budget;

// SAFETY: the system's allocator does the work; a null pointer says that there is no memory.
unsafe impl GlobalAlloc for Budget {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if COUNTS.get() {
            let left = LEFT.get() - layout.size() as isize;
            if left < 0 {
                return std::ptr::null_mut();
            }
            LEFT.set(left);
        }
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        if COUNTS.get() {
            LEFT.set(LEFT.get() + layout.size() as isize);
        }
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(place, layout) }
    }
}

/// A simulation in which nothing leaves and time stands still.
struct Alone(AtomicU64);

impl Network for Alone {
    fn open(&self, _: [u8; 16], _: u32, _: u16) -> io::Result<Arc<dyn Outlet>> {
        Err(io::ErrorKind::NetworkUnreachable.into())
    }
}

impl Simulated for Alone {
    fn now(&self) -> u64 {
        1
    }

    fn chance(&self) -> u64 {
        self.0.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 7
    }
}

/// The beginning of an answer, or the error. All allocations of the command count.
fn scarce(control: &dyn Control, request: &[u8]) -> Result<[u32; 3], Errno> {
    COUNTS.set(true);
    let answer = control.call(request, &[]);
    let short = answer.map(|answer| {
        let mut words = answer.bytes.chunks_exact(4).filter_map(|word| word.try_into().ok().map(u32::from_ne_bytes));
        [(); 3].map(|()| words.next().unwrap_or(0))
    });
    let short = short.map_err(|error| error.errno);
    COUNTS.set(false);
    short
}

/// Pseudo-random numbers.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % bound
    }

    fn any(&mut self, of: &[u32]) -> u32 {
        of.get(self.below(of.len().max(1))).copied().unwrap_or(0)
    }
}

fn agent() -> (Arc<Stepped>, Arc<Alone>) {
    let config = Config { addresses: vec![IpAddr::from(ADDRESS)], wire: WireMode::External, ..Config::default() };
    let alone = Arc::new(Alone(AtomicU64::new(1)));
    let agent = Stepped::new(&config, "scarce memory", Arc::clone(&alone) as _, Arc::clone(&alone) as _);
    (Arc::new(agent.expect("an agent")), alone)
}

fn create(space: u16) -> Vec<u8> {
    build(command::CREATE_ID, &CreateId { uid: 1, ps: space, ..CreateId::default() }, &[], 4)
}

fn resolve(id: u32) -> Vec<u8> {
    let (dst_addr, dst_size) = Sockaddr::Ip((IpAddr::from(ADDRESS), PORT).into()).emit();
    build(
        command::RESOLVE_ADDR,
        &ResolveAddr { id, timeout_ms: 1, dst_size, dst_addr, ..ResolveAddr::default() },
        &[],
        0,
    )
}

fn connect(id: u32) -> Vec<u8> {
    let conn_param = ConnParam { valid: 1, qp_num: 0x100, private_data_len: 8, ..ConnParam::default() };
    build(command::CONNECT, &Connect { conn_param, id, ..Connect::default() }, &[], 0)
}

fn destroy(id: u32) -> Vec<u8> {
    build(command::DESTROY_ID, &DestroyId { id, ..DestroyId::default() }, &[], 8)
}

/// One random command of the connection manager. The caller notes what it creates.
fn any_command(dice: &mut Dice, token: u32, ids: &[u32], members: &[u32]) -> (u32, Vec<u8>) {
    let id = dice.any(ids);
    let number = [
        command::CREATE_ID,
        command::CREATE_ID,
        command::CREATE_ID,
        command::LISTEN,
        command::RESOLVE_ADDR,
        command::RESOLVE_ADDR,
        command::RESOLVE_ROUTE,
        command::CONNECT,
        command::ACCEPT,
        command::DISCONNECT,
        command::GET_EVENT,
        command::WRITE_CM_EVENT,
        command::WRITE_CM_EVENT,
        command::WRITE_CM_EVENT,
        command::JOIN_MCAST,
        command::LEAVE_MCAST,
        command::MIGRATE_ID,
        command::DESTROY_ID,
    ][dice.below(18)];
    let request = match number {
        command::CREATE_ID => create([port_space::TCP, port_space::UDP][dice.below(2)]),
        command::LISTEN => build(number, &Listen { id, backlog: 100 }, &[], 0),
        command::RESOLVE_ADDR => resolve(id),
        command::RESOLVE_ROUTE => build(number, &ResolveRoute { id, timeout_ms: 1 }, &[], 0),
        command::CONNECT => connect(id),
        command::ACCEPT => {
            let conn_param = ConnParam { valid: 1, qp_num: 0x100, ..ConnParam::default() };
            build(number, &Accept { conn_param, id, ..Accept::default() }, &[], 0)
        }
        command::DISCONNECT => build(number, &Disconnect { id }, &[], 0),
        command::GET_EVENT => build(number, &GetEvent { response: 1 }, &[], size_of::<EventAnswer>()),
        command::WRITE_CM_EVENT => {
            build(number, &WriteCmEvent { id, event: event::USER, ..WriteCmEvent::default() }, &[], 0)
        }
        command::JOIN_MCAST => {
            let group = IpAddr::from([239, 1, dice.below(256) as u8, dice.below(256) as u8]);
            let (addr, addr_size) = Sockaddr::Ip((group, 0).into()).emit();
            build(number, &JoinMcast { id, addr_size, addr, ..JoinMcast::default() }, &[], 4)
        }
        command::LEAVE_MCAST => build(number, &DestroyId { id: dice.any(members), ..DestroyId::default() }, &[], 8),
        command::MIGRATE_ID => build(number, &MigrateId { id, fd: token, ..MigrateId::default() }, &[], 8),
        _ => destroy(id),
    };
    (number, request)
}

#[test]
fn the_connection_manager_refuses_without_memory_and_goes_on() {
    for budget in [60, 140, 200, 300, 500, 900, 1_600, 3_000] {
        let (agent, _) = agent();
        let (channel, _event_socket) = agent.connect_manager().expect("a channel");
        let listener = channel.call(&create(port_space::TCP), &[]).expect("memory").bytes;
        let listener = u32::from_ne_bytes(listener[..4].try_into().expect("whole"));
        let (addr, addr_size) = Sockaddr::Ip((IpAddr::from(ADDRESS), PORT).into()).emit();
        let bind = abi::ucma::address::Bind { id: listener, addr_size, addr, ..Default::default() };
        channel.call(&build(command::BIND, &bind, &[], 0), &[]).expect("memory");
        channel.call(&build(command::LISTEN, &Listen { id: listener, backlog: 1024 }, &[], 0), &[]).expect("memory");
        let token = channel.call(&build(command::CHANNEL, &Token::default(), &[], size_of::<ChannelAnswer>()), &[]);
        let token = token.map_or(0, |answer| ChannelAnswer::read(&answer.bytes).expect("whole").channel);
        let (mut ids, mut members, mut dice) = (vec![listener], Vec::new(), Dice(budget as u64));
        let (mut done, mut refused) = (0, 0);
        LEFT.set(budget << 10);
        for _ in 0..25_000 {
            let (number, request) = any_command(&mut dice, token, &ids, &members);
            match scarce(&channel, &request) {
                Ok([new, ..]) => {
                    done += 1;
                    match number {
                        command::CREATE_ID => ids.push(new),
                        command::JOIN_MCAST => members.push(new),
                        command::DESTROY_ID => ids.retain(|id| request[8 + 8..8 + 12] != id.to_ne_bytes()),
                        _ => {}
                    }
                }
                Err(Errno::ENOMEM) => {
                    assert_ne!(number, command::DESTROY_ID, "what gives back needs no memory");
                    refused += 1;
                }
                Err(_) => {}
            }
            COUNTS.set(true);
            agent.step();
            COUNTS.set(false);
        }
        println!("{budget} KiB: {done} commands done, {refused} refused for want of memory; {} ids", ids.len());
        assert!(refused > 0, "{budget} KiB were enough");
        assert!(done > 0 || budget <= 140, "{budget} KiB were good for nothing");
        // With memory again, everything is as before.
        for id in ids {
            channel.call(&destroy(id), &[]).expect("the id is there");
        }
        let id = channel.call(&create(port_space::TCP), &[]).expect("memory").bytes;
        let id = u32::from_ne_bytes(id[..4].try_into().expect("whole"));
        channel.call(&resolve(id), &[]).expect("resolved");
    }
}

#[test]
fn a_device_refuses_without_memory_and_goes_on() {
    for budget in [60, 140, 300, 700, 1_000] {
        let (agent, alone) = agent();
        let control = agent.connect(0, Arc::clone(&alone) as _, Arc::clone(&alone) as _).expect("opened");
        let open = legacy(number::GET_CONTEXT, &GetContext { response: 1 }, &[], size_of::<GetContextAnswer>() + 40);
        control.call(&open, &[]).expect("memory");
        let pd = control.call(&legacy(number::ALLOC_PD, &AllocPd { response: 1 }, &[], 12), &[]).expect("memory").bytes;
        let pd = u32::from_ne_bytes(pd[..4].try_into().expect("whole"));
        let (mut dice, mut done, mut refused) = (Dice(budget as u64), 0, 0);
        LEFT.set(budget << 10);
        let mut attr = AhAttr { is_global: 1, port_num: 1, ..AhAttr::default() };
        attr.dgid[..2].copy_from_slice(&[0xfe, 0x80]);
        let (mut cq, mut made) = (0, [0_u32; 4]);
        for _ in 0..20_000 {
            let which = dice.below(if cq == 0 { 3 } else { 4 });
            let request = match which {
                0 => legacy(number::ALLOC_PD, &AllocPd { response: 1 }, &[], 12),
                1 => legacy(
                    number::CREATE_AH,
                    &CreateAh { response: 1, pd_handle: pd, attr, ..CreateAh::default() },
                    &[],
                    4,
                ),
                2 if made[2] < 300 => {
                    let body = CreateCq { response: 1, cqe: 16, comp_channel: -1, ..CreateCq::default() };
                    legacy(number::CREATE_CQ, &body, &[], 8 + 56)
                }
                _ => {
                    let body = abi::qp::CreateQp {
                        response: 1,
                        pd_handle: pd,
                        send_cq_handle: cq,
                        recv_cq_handle: cq,
                        max_send_wr: 16,
                        max_recv_wr: 16,
                        max_send_sge: 1,
                        max_recv_sge: 1,
                        qp_type: kind::RC,
                        ..Default::default()
                    };
                    if made[3] > 300 { continue } else { legacy(number::CREATE_QP, &body, &[], 32 + 72) }
                }
            };
            match scarce(&control, &request) {
                Ok([new, ..]) => {
                    done += 1;
                    made[which] += 1;
                    if which == 2 {
                        cq = new;
                    }
                }
                Err(Errno::ENOMEM) => refused += 1,
                Err(errno) => assert!(budget < 140 || which > 1, "{which}: {errno:?}"),
            }
        }
        println!("{budget} KiB: {done} commands done ({made:?}), {refused} refused for want of memory");
        assert!(refused > 0, "{budget} KiB were enough");
        assert!(done > 0 || budget <= 140, "{budget} KiB were good for nothing");
        control.call(&legacy(number::ALLOC_PD, &AllocPd { response: 1 }, &[], 12), &[]).expect("memory");
    }
}
