//! The text after the options in `--help`: examples, and what scripts need to know. A test checks
//! that no line is longer than 80 columns.

pub(super) const SOFTHCA: &str = "\
Examples:
  softhca run -- ibv_devinfo
      Run a program on a software RDMA device.
  softhca run --pair -- ibv_rc_pingpong -g 0 -- ibv_rc_pingpong -g 0 127.0.0.1
      Run a server and a client.
  softhca show qp
      Show the queue pairs of every program, and their paths.
  softhca show --errors
      Say why something failed.
  softhca capture -w all.pcapng
      Capture every packet for Wireshark, also those over shared memory.
  softhca bench write bw --all
      Measure the bandwidth of RDMA WRITE.
  softhca doctor -- ./my-server
      Check this machine and a program.

Environment:
  SOFTHCA_DIR     Run directory. Programs and agents with the same one see each
                  other. Default: $XDG_RUNTIME_DIR/softhca-..., else
                  /tmp/softhca-..., one for each user and network namespace; if
                  no agent serves it, /run/softhca-... if an agent serves that.
  SOFTHCA_FAULTS  Fault rules, separated by semicolons, or the path of a TOML
                  file (docs/faults.md).
  SOFTHCA_LOG     Log level on standard error: error, warn, info, debug, trace.
  SOFTHCA_SHARED_MEMORY
                  1: as softhca run --shared-memory. A number of bytes from 4096
                  on: the same, for memory of at least this size. 0: as
                  --private-memory (docs/shared-memory.md).
  NO_COLOR        No colours on a terminal.";

pub(super) const DOCTOR: &str = "\
Examples:
  softhca doctor                    Check this machine.
  softhca doctor -- ./my-server     Check whether this program can use softhca.

Each line is ok, warn or FAIL; a line with an arrow names the next step. The
doctor starts nothing. It fails where `softhca run` would refuse to start the
program, and where the program would start without softhca.

Exit code: 0 if nothing fails, 1 if something fails, 2 for unknown options.";

pub(super) const RUN: &str = "\
Examples:
  softhca run -- ibv_devinfo
  softhca run --pair -- ib_write_bw -- ib_write_bw 127.0.0.1
      A server and a client: the client starts when the server listens.
  softhca run --quiet -- ./my-tests
  softhca run --strict -- ./my-tests
      Also find errors that a run does not reveal (docs/strict.md).
  softhca run --pair --sockets -- iperf3 -s -1 -- iperf3 -c 127.0.0.1
      Sockets over RDMA, for programs that know nothing of it.
  softhca run --pair --shared-memory -- ib_write_lat -- ib_write_lat 127.0.0.1
      Large memory is shared: WRITE, READ and atomics access it directly.
  softhca run --link-layer infiniband -- ibv_rc_pingpong
      A port with a LID: the program needs no GID index.
  softhca run --address 127.0.0.2 -- ./server
  softhca run --address 127.0.0.3 -- ./client 127.0.0.2
      Two virtual hosts, which speak RoCEv2 to each other.
  softhca run --fault 'loss 5% seed 7' -- ./my-tests
      Lose packets (docs/faults.md).
  SOFTHCA_LOG=debug softhca run -- ./my-server

--pair: the words up to the next -- are the server, all others the client. If
the server needs a --, put it into a script. The client starts when the server,
or a program that it has started, listens with TCP or rdma_cm; after 10 s it
starts in any case. Each line of output begins with server: or client:. When one
side ends, the other has 5 s to end too, then it gets SIGTERM, and 3 s later
SIGKILL, with all that it has started. Signals go to both. Standard input is the
client's. The exit code is the client's, or the server's if the client ended
with 0 or had to be ended.

Exit code: the program's, or 128 + the signal that ended it.
  123  --strict found something, and the program ended with 0
  125  softhca could not do its part, or does not know an option
  126  the program cannot be executed
  127  the program was not found

When the program fails, the reasons follow on standard error, those of its
children too. When it ends with 0, only those of failed requests follow.";

pub(super) const CAPTURE: &str = "\
Examples:
  softhca capture                     One line for each packet, until ^C.
  softhca capture -v -c 10            Ten packets, header by header.
  softhca capture -w all.pcapng       A file for Wireshark.
  softhca capture -w - | wireshark -k -i -
  softhca capture -w - | tshark -r - -Y infiniband.aeth.syndrome.opcode==3
  softhca capture --no-payload -w headers.pcapng
  softhca capture qp 0x11             One queue pair, as sender or receiver.
  softhca capture host 10.0.0.2 and not ack
  softhca capture 'cm or nak or dropped'
  softhca capture opcode rdma-read and lane
  softhca capture --json --duration 5 | jq .opcode

Filter words, joined by and, or, not and parentheses:
  [src|dst] host ADDRESS, [src|dst] qp N, [src|dst] pid N, device NAME,
  opcode NAME, lane [N], wire, in, out, cm, ack, nak, dropped, fault

A capture sees all packets of all programs of the agent, each once per path: on
a lane (shared memory) as the RoCEv2 packet that it stands for, on the wire as
it was sent or received. With `softhca agent --system`, a user sees own programs
only. Programs run slower during a capture, and never wait for it: packets for
which the buffer has no room are counted and missing (docs/capture.md).

Exit code: 0 when the capture ended as asked, 1 when it could not be made or the
agent ended, 2 for unknown options.";

pub(super) const SHOW: &str = "\
Examples:
  softhca show                    How many objects there are of each kind.
  softhca show qp                 One line per queue pair.
  softhca show --json mr          Memory regions, for a script (docs/json.md).
  softhca show --errors           Why something failed (docs/why.md).
  softhca show --errors --json    The same for a script.

Without an agent, `show --errors` reads the reasons that programs under
`softhca run` left in the run directory: a later step of a CI job finds them.

Exit code: 0, 1 if no agent is running and no reasons are stored, 2 for unknown
options.";
