/* A user of Debian's libiscsi: logs in to the URL of a logical unit, writes blocks, reads them back and compares.
 *   storage URL BLOCKS */
#include <iscsi/iscsi.h>
#include <iscsi/scsi-lowlevel.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 512, AT_ONCE = 128 };

#define MUST(condition) do { if (!(condition)) { fprintf(stderr, "%s:%d: %s does not hold: %s\n", __FILE__, __LINE__, #condition, \
                             iscsi ? iscsi_get_error(iscsi) : ""); exit(1); } } while (0)

static unsigned char pattern(uint64_t at) { return (unsigned char)((at * 2654435761u) >> 11); }

int main(int argc, char **argv)
{
    struct iscsi_context *iscsi = NULL;
    static unsigned char out[BLOCK * AT_ONCE];
    MUST(argc == 3);
    iscsi = iscsi_create_context("iqn.2024-01.example:suite");
    MUST(iscsi);
    struct iscsi_url *url = iscsi_parse_full_url(iscsi, argv[1]);
    MUST(url);
    MUST(iscsi_set_session_type(iscsi, ISCSI_SESSION_NORMAL) == 0);
    MUST(iscsi_set_header_digest(iscsi, ISCSI_HEADER_DIGEST_NONE) == 0);
    MUST(iscsi_full_connect_sync(iscsi, url->portal, url->lun) == 0);
    uint64_t blocks = strtoull(argv[2], NULL, 0);
    for (uint64_t at = 0; at < blocks; at += AT_ONCE) {
        for (unsigned i = 0; i < sizeof out; i++) out[i] = pattern(at * BLOCK + i);
        struct scsi_task *task = iscsi_write16_sync(iscsi, url->lun, at, out, sizeof out, BLOCK, 0, 0, 0, 0, 0);
        MUST(task && task->status == SCSI_STATUS_GOOD);
        scsi_free_scsi_task(task);
    }
    for (uint64_t at = 0; at < blocks; at += AT_ONCE) {
        for (unsigned i = 0; i < sizeof out; i++) out[i] = pattern(at * BLOCK + i);
        struct scsi_task *task = iscsi_read16_sync(iscsi, url->lun, at, sizeof out, BLOCK, 0, 0, 0, 0, 0);
        MUST(task && task->status == SCSI_STATUS_GOOD);
        MUST(task->datain.size == sizeof out && memcmp(task->datain.data, out, sizeof out) == 0);
        scsi_free_scsi_task(task);
    }
    MUST(iscsi_logout_sync(iscsi) == 0);
    iscsi_destroy_url(url);
    iscsi_destroy_context(iscsi);
    printf("%llu blocks are what they were\n", (unsigned long long)blocks);
    return 0;
}
