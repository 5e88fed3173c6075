# A server and its client: meet.sh READY SERVER CLIENT. READY is the TCP port on which the server listens, `cm` when it listens by
# the connection manager, `group` when it is in a multicast group, `udp:PORT` for datagrams. A server that still serves after its
# client is ended, and that is its success.
ready=$1 server=$2 client=$3
cd /tmp
# Some builds of ucx_perftest meet by MPI when there is no terminal, unless this says that they shall not.
case $client in *ucx_perftest*)
    if ucx_perftest -h 2>&1 | grep -q -e ' -P <0|1>'; then
        server="$server -P 0" client="$client -P 0"
    fi
    ;;
# Each release has other options. Both sides make up QP numbers from 1000 on. One adapter has each number once, so the client uses others.
cmtime*)
    if cmtime -h 2>&1 | grep -q -e '-L'; then
        ready=7471 server='cmtime -L -b 127.0.0.1 -C 127.0.0.1' client='cmtime -b 127.0.0.1 -C 127.0.0.1'
    fi
    if cmtime -h 2>&1 | grep -q -e '-q'; then
        client="$client -q 2000"
    fi
    ;;
esac
softhca run -- $server >server.out 2>&1 &
pid=$!
is_ready() {
    case $ready in
    cm) softhca show cm 2>&1 | grep -q listening ;;
    group) softhca show cm --json 2>&1 | grep -q '"groups": *[1-9]' ;;
    udp:*) grep -q "$(printf :%04X "${ready#udp:}") " /proc/net/udp /proc/net/udp6 ;;
    *) grep -q "$(printf :%04X "$ready") [0:]* 0A" /proc/net/tcp /proc/net/tcp6 ;;
    esac
}
until is_ready; do
    if ! kill -0 $pid 2>/dev/null; then
        cat server.out
        exit 1
    fi
    sleep 0.05
done
softhca run -- $client >client.out 2>&1
code=$?
if [ $code = 0 ]; then
    # One that ends by itself does so at once.
    tries=100
    while kill -0 $pid 2>/dev/null && [ $tries -gt 0 ]; do
        tries=$((tries - 1))
        sleep 0.05
    done
    if kill -TERM $pid 2>/dev/null; then
        wait $pid
    else
        wait $pid || code=$?
    fi
else
    kill -TERM $pid 2>/dev/null
    wait $pid
fi
cat client.out
if [ $code != 0 ]; then
    echo '--- the server'
    cat server.out
fi
exit $code
