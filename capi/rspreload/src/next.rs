//! The functions of the C library that this library replaces: all that take a socket.

interpose::functions!(
    // Making and closing.
    socket,
    bind,
    listen,
    accept,
    accept4,
    connect,
    shutdown,
    close,
    getsockname,
    getpeername,
    setsockopt,
    getsockopt,
    // Data.
    read,
    __read_chk,
    readv,
    recv,
    __recv_chk,
    recvfrom,
    __recvfrom_chk,
    recvmsg,
    write,
    writev,
    send,
    sendto,
    sendmsg,
    sendfile,
    sendfile64,
    // Waiting.
    poll,
    __poll_chk,
    ppoll,
    __ppoll_chk,
    select,
    pselect,
    epoll_ctl,
    epoll_wait,
    epoll_pwait,
    // As files.
    fcntl,
    fcntl64,
    ioctl,
    dup,
    dup2,
    dup3,
    fstat,
    fstat64,
    __fxstat,
    __fxstat64,
);

/// Runs when the library is loaded.
#[cfg(not(test))]
extern "C" fn loaded() {
    NEXT.look_up_all();
}

#[cfg(not(test))]
#[used]
// SAFETY: the loader calls the functions in this section, which contains one address.
#[unsafe(link_section = ".init_array")]
static LOADED: extern "C" fn() = loaded;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_c_library_has_them_all() {
        NEXT.look_up_all();
        assert_eq!(NEXT.missing().next(), None);
    }
}
