//! The functions of the C library that this library replaces: all that take a path, the socket
//! functions in which a netlink socket differs from a unix socket, the calls on a node of
//! management datagrams, and those that duplicate a descriptor.

interpose::functions!(
    // Opening.
    open,
    open64,
    openat,
    openat64,
    creat,
    creat64,
    __open_2,
    __open64_2,
    __openat_2,
    __openat64_2,
    fopen,
    fopen64,
    freopen,
    freopen64,
    // Querying files.
    stat,
    lstat,
    fstatat,
    stat64,
    lstat64,
    fstatat64,
    __xstat,
    __lxstat,
    __fxstatat,
    __xstat64,
    __lxstat64,
    __fxstatat64,
    statx,
    access,
    faccessat,
    eaccess,
    euidaccess,
    getxattr,
    lgetxattr,
    listxattr,
    llistxattr,
    // Names.
    readlink,
    readlinkat,
    __readlink_chk,
    __readlinkat_chk,
    realpath,
    __realpath_chk,
    canonicalize_file_name,
    // Directories.
    opendir,
    scandir,
    scandir64,
    scandirat,
    scandirat64,
    chdir,
    getcwd,
    __getcwd_chk,
    get_current_dir_name,
    // Many files.
    glob,
    glob64,
    ftw,
    ftw64,
    nftw,
    nftw64,
    // Sockets.
    socket,
    bind,
    connect,
    getsockname,
    setsockopt,
    recvmsg,
    recvfrom,
    __recvfrom_chk,
    // Management datagrams.
    ioctl,
    read,
    __read_chk,
    readv,
    write,
    writev,
    // Duplicates of descriptors.
    dup,
    dup2,
    dup3,
    fcntl,
    fcntl64,
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_c_library_has_them_all() {
        NEXT.look_up_all();
        assert_eq!(NEXT.missing().next(), None);
    }
}
