"""One side of a test of Debian's module test_rdmacm, whose other side runs on another host.

    cm_side.py TESTS NAME PORT ADDRESS [client]

The test, its connection and its checks are Debian's. Only the processes differ: Debian forks both sides, with
one address for both. Here each host runs one side. The barrier and the queue of the sides are messages on a TCP
connection to PORT. ADDRESS is the server's."""

import pickle
import socket
import sys

tests, name, port, server = sys.argv[1:5]
is_client = sys.argv[5:] == ['client']
sys.path[:0] = [tests, tests + '/tests']
sys.argv[1:] = ['--gid', '0']
from args_parser import parser
from tests import base_rdmacm
from tests.test_rdmacm import CMTestCase

LIMIT = 60  # seconds


def opened(connection):
    connection.settimeout(LIMIT)
    return connection.makefile('rwb')


class Channel:
    """The barrier and the queue. The server waits for the client when it first needs it."""

    def __init__(self, address, is_client):
        family = socket.AF_INET6 if ':' in address[0] else socket.AF_INET
        self.listener = None if is_client else socket.create_server(address, family=family)
        self.file = opened(socket.create_connection(address)) if is_client else None
        self.early = {'barrier': [], 'queue': []}

    def send(self, kind, value=None):
        self.file = self.file or opened(self.listener.accept()[0])
        pickle.dump((kind, value), self.file)
        self.file.flush()

    def receive(self, kind):
        while not self.early[kind]:
            came, value = pickle.load(self.file)
            self.early[came].append(value)
        return self.early[kind].pop(0)

    def wait(self):
        self.send('barrier')
        self.receive('barrier')

    def put(self, value):
        self.send('queue', value)

    def get(self):
        return self.receive('queue')


class Side(CMTestCase):
    """The test, of which this host runs one side."""

    def two_nodes_rdmacm_traffic(self, connection_resources, test_flow, **more):
        test_flow(connection_resources=connection_resources, passive=not is_client, **more)


def address(src=None, dst=None, **more):
    """The client's own address is not the server's: the route decides."""
    return own(dst=dst, **more) if dst else own(src=src, **more)


own, base_rdmacm.AddrInfo = base_rdmacm.AddrInfo, address
parser.parse_args()
side = Side(name)
side.ip_addr = server
side.syncer = side.notifier = Channel((server, int(port)), is_client)
getattr(side, name)()
print(f'{name} passed')
