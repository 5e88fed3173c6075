/* Calls libibumad and prints every result, so that two libraries can be compared. */
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/umad.h>
#include <infiniband/umad_str.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Names of the specification; those of statuses are each library's own. */
static void names(void)
{
	printf("%s %s %s\n", umad_class_str(0x03), umad_method_str(0x03, 0x12),
	       umad_attribute_str(0x03, htons(0x0035)));
	printf("%s %s %s\n", umad_class_str(0x81), umad_method_str(0x81, 0x05),
	       umad_attribute_str(0x81, htons(0x0015)));
	printf("%d %d\n", umad_common_mad_status_str(0) != NULL, umad_sa_mad_status_str(0) != NULL);
}

static void devices(void)
{
	char cas[8][UMAD_CA_NAME_LEN], path[64];
	__be64 guids[12];
	umad_ca_t ca;
	umad_port_t port;
	int count = umad_get_cas_names(cas, 8);

	printf("%d devices, first %s\n", count, count > 0 ? cas[0] : "");
	memset(guids, 0, sizeof guids);
	count = umad_get_ca_portguids(NULL, guids, 12);
	printf("guids %d %llx %llx\n", count, (long long)guids[0], (long long)guids[1]);
	printf("ca %d\n", umad_get_ca(cas[0], &ca));
	printf("%s %u %d '%s' '%s' '%s' %llx %llx\n", ca.ca_name, ca.node_type, ca.numports, ca.fw_ver, ca.ca_type,
	       ca.hw_ver, (long long)ca.node_guid, (long long)ca.system_guid);
	printf("release %d\n", umad_release_ca(&ca));
	printf("port %d\n", umad_get_port(NULL, 0, &port));
	printf("%s %d %u %u %u %u %u %u %u %x %llx %llx %u %x %s\n", port.ca_name, port.portnum, port.base_lid, port.lmc,
	       port.sm_lid, port.sm_sl, port.state, port.phys_state, port.rate, port.capmask,
	       (long long)port.gid_prefix, (long long)port.port_guid, port.pkeys_size, port.pkeys[0], port.link_layer);
	printf("release %d\n", umad_release_port(&port));
	printf("missing %d", umad_get_ca("nope", &ca));
	printf(" %d", umad_get_port(NULL, 99, &port));
	printf(" %d\n", umad_open_port("nope", 1));
	count = umad_get_issm_path(NULL, 0, path, sizeof path);
	printf("issm %d %s\n", count, path);
}

static void registrations(int fd)
{
	struct umad_reg_attr attr = { .mgmt_class = 4, .mgmt_class_version = 1, .flags = 0xff };
	uint8_t oui[3] = { 0, 1, 2 };
	uint32_t id = 77;
	int result;

	printf("register %d", umad_register(fd, 1, 1, 0, NULL));
	printf(" %d", umad_register(fd, 0x81, 1, 0, NULL));
	printf(" %d", umad_register_oui(fd, 3, 0, oui, NULL));
	printf(" %d\n", umad_register_oui(fd, 0x32, 0, oui, NULL));
	result = umad_register2(fd, &attr, &id);
	printf("flags %d %x %u\n", result, attr.flags, id);
	attr.flags = 0;
	result = umad_register2(fd, &attr, &id);
	printf("register2 %d %u\n", result, id);
}

static void messages(int fd)
{
	void *umad = calloc(1, umad_size() + 256);
	unsigned char *mad = umad_get_mad(umad);
	struct pollfd file = { .fd = umad_get_fd(fd), .events = POLLIN };
	int length = 256, result;

	printf("poll %d\n", umad_poll(fd, 1));
	result = umad_recv(fd, umad, &length, 0);
	printf("nothing %d %d\n", result, length);
	/* Get NodeInfo of the own port, by a directed route without hops. */
	mad[0] = 1;
	mad[1] = 0x81;
	mad[2] = 1;
	mad[3] = 1;
	mad[15] = 9;
	mad[17] = 0x11;
	memset(mad + 32, 0xff, 4);
	umad_set_addr(umad, 0xffff, 0, 0, 0);
	printf("send %d\n", umad_send(fd, 1, umad, 256, 10000, 1));
	printf("arrived %d\n", poll(&file, 1, -1));
	length = 10;
	result = umad_recv(fd, umad, &length, -1);
	printf("short %d\n", result);
	length = 256;
	result = umad_recv(fd, umad, &length, -1);
	printf("answer %d %d %d %x %02x%02x\n", result, length, umad_status(umad), mad[3], mad[16], mad[17]);
	printf("no agent %d\n", umad_send(fd, 30, umad, 256, 0, 0));
	printf("unregister %d", umad_unregister(fd, 0));
	printf(" %d\n", umad_unregister(fd, 0));
	free(umad);
}

int main(void)
{
	struct umad_device_node *head;
	int fd;

	umad_init();
	devices();
	fd = umad_open_port(NULL, 0);
	printf("open %d, header %zu\n", fd >= 0, umad_size());
	registrations(fd);
	messages(fd);
	printf("close %d\n", umad_close_port(fd));
	head = umad_get_ca_device_list();
	printf("list %s, sort %d\n", head ? head->ca_name : "", umad_sort_ca_device_list(&head, 0));
	umad_free_ca_device_list(head);
	names();
	return 0;
}
