//! Commands on the agent's tables: `dispatch` is called as a function, without sockets and threads.

mod direct;
mod dispatch;
mod infiniband;
mod objects;
