//! Command numbers by name. [`super::rows`] has their meanings. A number does not show whether it
//! has the legacy or the extended form. So commands of the extended form have names with `EX_`, or
//! are softhca's own, from 192.

/// Create the context and its async file.
pub const GET_CONTEXT: u8 = 0;
/// Attributes of the device.
pub const QUERY_DEVICE: u8 = 1;
/// Attributes of a port.
pub const QUERY_PORT: u8 = 2;
/// Allocate a protection domain.
pub const ALLOC_PD: u8 = 3;
/// Deallocate a protection domain.
pub const DEALLOC_PD: u8 = 4;
/// Create an address handle.
pub const CREATE_AH: u8 = 5;
/// No layout; refused.
pub const MODIFY_AH: u8 = 6;
/// No layout; refused.
pub const QUERY_AH: u8 = 7;
/// Destroy an address handle.
pub const DESTROY_AH: u8 = 8;
/// Register memory.
pub const REG_MR: u8 = 9;
/// No layout; refused.
pub const REG_SMR: u8 = 10;
/// Change a registration.
pub const REREG_MR: u8 = 11;
/// No layout; refused.
pub const QUERY_MR: u8 = 12;
/// End a registration.
pub const DEREG_MR: u8 = 13;
/// Allocate a memory window.
pub const ALLOC_MW: u8 = 14;
/// No layout; refused.
pub const BIND_MW: u8 = 15;
/// Deallocate a memory window.
pub const DEALLOC_MW: u8 = 16;
/// Create a completion channel.
pub const CREATE_COMP_CHANNEL: u8 = 17;
/// Create a completion queue.
pub const CREATE_CQ: u8 = 18;
/// Resize a completion queue.
pub const RESIZE_CQ: u8 = 19;
/// Destroy a completion queue.
pub const DESTROY_CQ: u8 = 20;
/// Poll completions (proxy engine).
pub const POLL_CQ: u8 = 21;
/// No layout; refused.
pub const PEEK_CQ: u8 = 22;
/// Ask for a completion event (proxy engine).
pub const REQ_NOTIFY_CQ: u8 = 23;
/// Create a queue pair.
pub const CREATE_QP: u8 = 24;
/// Attributes of a queue pair.
pub const QUERY_QP: u8 = 25;
/// Change attributes of a queue pair.
pub const MODIFY_QP: u8 = 26;
/// Destroy a queue pair.
pub const DESTROY_QP: u8 = 27;
/// Post send work requests (proxy engine).
pub const POST_SEND: u8 = 28;
/// Post receive work requests (proxy engine).
pub const POST_RECV: u8 = 29;
/// Add a queue pair to a multicast group.
pub const ATTACH_MCAST: u8 = 30;
/// Remove a queue pair from a multicast group.
pub const DETACH_MCAST: u8 = 31;
/// Create a shared receive queue.
pub const CREATE_SRQ: u8 = 32;
/// Resize a shared receive queue, or arm its limit.
pub const MODIFY_SRQ: u8 = 33;
/// Attributes of a shared receive queue.
pub const QUERY_SRQ: u8 = 34;
/// Destroy a shared receive queue.
pub const DESTROY_SRQ: u8 = 35;
/// Post receive work requests to a shared receive queue (proxy engine).
pub const POST_SRQ_RECV: u8 = 36;
/// Open an XRC domain.
pub const OPEN_XRCD: u8 = 37;
/// Close an XRC domain.
pub const CLOSE_XRCD: u8 = 38;
/// Create a shared receive queue of any type.
pub const CREATE_XSRQ: u8 = 39;
/// Open an XRC target queue pair that exists.
pub const OPEN_QP: u8 = 40;
/// An entry of a port's GID table.
pub const QUERY_GID: u8 = 45;
/// An entry of a port's P_Key table.
pub const QUERY_PKEY: u8 = 46;

/// Attributes of the device, longer.
pub const EX_QUERY_DEVICE: u8 = 1;
/// Create a completion queue.
pub const EX_CREATE_CQ: u8 = 18;
/// Create a queue pair.
pub const EX_CREATE_QP: u8 = 24;
/// Change attributes of a queue pair.
pub const EX_MODIFY_QP: u8 = 26;
/// Moderation of a completion queue.
pub const EX_MODIFY_CQ: u8 = 57;
/// The client runs an engine.
pub const ENGINE_HELLO: u8 = 192;
/// A lane to another engine.
pub const LANE_OPEN: u8 = 193;
/// Engines in a multicast group.
pub const MCAST_RESOLVE: u8 = 194;
/// Destroy a completion channel.
pub const CHANNEL_DESTROY: u8 = 195;
/// An entry of a port's GID table, with type and interface.
pub const GID_ENTRY: u8 = 196;
/// Ask for datagrams from other hosts.
pub const WIRE_OPEN: u8 = 197;
/// The agent's receiving sockets.
pub const WIRE_SOCKETS: u8 = 198;
/// Ask another engine for direct access to memory of its program.
pub const DIRECT_ASK: u8 = 199;
/// Grant another engine direct access to memory.
pub const DIRECT_GRANT: u8 = 200;
/// Which packets pass the switches to a port.
pub const PATH_RESOLVE: u8 = 201;
/// Undo a resize whose memory the client cannot map.
pub const RESIZE_UNDO: u8 = 202;
/// A packet has come to a port with a wrong P_Key or Q_Key.
pub const VIOLATION: u8 = 203;
/// Allocate device memory.
pub const ALLOC_DM: u8 = 208;
/// Free device memory.
pub const FREE_DM: u8 = 209;
/// Let this context use another context's objects.
pub const IMPORT_CONTEXT: u8 = 210;
/// Use another context's protection domain.
pub const IMPORT_PD: u8 = 211;
/// Use another context's memory region.
pub const IMPORT_MR: u8 = 212;
/// Use another context's device memory.
pub const IMPORT_DM: u8 = 213;
/// Which engine has an SRQ of an XRC domain.
pub const XRC_FIND: u8 = 224;
/// Continue an XRC target that no engine serves any more.
pub const XRC_ADOPT: u8 = 225;
/// Something happened to an XRC target.
pub const XRC_EVENT: u8 = 226;
/// The connection of a queue pair of iWARP.
pub const STREAM_TAKE: u8 = 232;
/// The connection of a queue pair of iWARP has ended.
pub const STREAM_END: u8 = 233;
