//! The worked example of `docs/abi.md`: messages as bytes, parsed field by field. Nothing is sent.

use std::fmt::Write;

use crate::command::{self, Header};
use crate::device::{GetContext, GetContextAnswer};
use crate::envelope::{ReplyEnvelope, RequestEnvelope};
use crate::errno::Errno;
use crate::layout::{Layout, Record};
use crate::mr::{RegMr, RegMrAnswer, access};
use crate::open::{MAGIC, Open, OpenAnswer, VERSION, profile};
use crate::pd::{AllocPd, AllocPdAnswer, DeallocPd};
use crate::post::{Post, PostAnswer, SendWr, Sge, opcode, send_flags};
use crate::queue::{CONTEXT_LEN, ContextOut, Mapping, MrIn, PdOut, REV, mapping_flags, mr_flags};

const PD: u32 = 0x1000_0000;
const LKEY: u32 = 0x100;
const QP: u32 = 0x4000_0000;
const ADDRESS: u64 = 0x1_0000;

/// All messages of the example.
pub(super) fn conversation() -> String {
    let mut talk = Talk { text: String::new(), sequence: 0 };
    let answer = OpenAnswer { magic: MAGIC, version: VERSION, profile: profile::MAINLINE, status: 0, pid: 4711 };
    talk.message("Client: open the node", &[&Piece::of(&Open::new(profile::MAINLINE))]);
    talk.message("Agent: accepted", &[&Piece::of(&answer)]);

    let page = Mapping {
        region: 1,
        flags: mapping_flags::FD_ATTACHED,
        region_len: CONTEXT_LEN as u64,
        offset: 0,
        length: CONTEXT_LEN as u64,
    };
    let tail = ContextOut { rev: REV, device: 0, page };
    let request = GetContext { response: command::RESPONSE };
    talk.request("GET_CONTEXT, with room for 48 bytes", command::GET_CONTEXT, &[Piece::of(&request)], 48);
    let answer = GetContextAnswer { async_fd: 0, num_comp_vectors: 1 };
    talk.reply("two fds are attached: the async eventfd and region 1", 0, 2, &[Piece::of(&answer), Piece::of(&tail)]);

    let request = AllocPd { response: command::RESPONSE };
    talk.request("ALLOC_PD, with room for 12 bytes", command::ALLOC_PD, &[Piece::of(&request)], 12);
    let (answer, tail) = (AllocPdAnswer { pd_handle: PD }, PdOut { rev: REV, number: 0 });
    talk.reply("a PD", 0, 0, &[Piece::of(&answer), Piece::of(&tail)]);

    let request = RegMr {
        response: command::RESPONSE,
        start: ADDRESS,
        length: 4096,
        hca_va: ADDRESS,
        pd_handle: PD,
        access_flags: access::LOCAL_WRITE,
    };
    let memory = MrIn { rev: REV, flags: mr_flags::MEMFD, ..MrIn::default() };
    let pieces = [Piece::of(&request), Piece::of(&memory)];
    talk.request("REG_MR; the memfd with the memory is attached", command::REG_MR, &pieces, 12);
    talk.reply("an MR", 0, 0, &[Piece::of(&RegMrAnswer { mr_handle: 0x2000_0000, lkey: LKEY, rkey: LKEY })]);

    let post = Post {
        response: command::RESPONSE,
        handle: QP,
        wr_count: 1,
        sge_count: 1,
        wqe_size: u32::try_from(size_of::<SendWr>()).unwrap_or_default(),
    };
    let work =
        SendWr { wr_id: 1, num_sge: 1, opcode: opcode::SEND, send_flags: send_flags::SIGNALED, ..SendWr::default() };
    let pieces = [Piece::of(&post), Piece::of(&work), Piece::of(&Sge::new(ADDRESS, 64, LKEY))];
    talk.request("POST_SEND of 64 bytes on a QP in RTS", command::POST_SEND, &pieces, 4);
    talk.reply("posted", 0, 0, &[Piece::of(&PostAnswer { bad_wr: 0 })]);

    talk.request("DEALLOC_PD, too early", command::DEALLOC_PD, &[Piece::of(&DeallocPd { pd_handle: PD })], 0);
    talk.reply("refused; a sentence that says why follows", Errno::EBUSY.to_status(), 0, &[]);
    talk.text
}

/// One record with its bytes.
struct Piece {
    layout: Layout,
    bytes: Vec<u8>,
}

impl Piece {
    fn of<T: Record>(record: &T) -> Self {
        Self { layout: T::LAYOUT, bytes: record.bytes().to_vec() }
    }
}

struct Talk {
    text: String,
    sequence: u32,
}

impl Talk {
    fn request(&mut self, what: &str, number: u8, body: &[Piece], out_len: u16) {
        self.sequence += 1;
        let len = size_of::<Header>() + body.iter().map(|piece| piece.bytes.len()).sum::<usize>();
        let in_words = u16::try_from(len / 4).unwrap_or_default();
        let header = Header { command: u32::from(number), in_words, out_words: out_len / 4 };
        let envelope = Piece::of(&RequestEnvelope { sequence: self.sequence, flags: 0 });
        let header = Piece::of(&header);
        let pieces: Vec<&Piece> = [&envelope, &header].into_iter().chain(body).collect();
        self.message(&format!("Client: {what}"), &pieces);
    }

    fn reply(&mut self, what: &str, status: i32, fds: u32, body: &[Piece]) {
        let envelope = Piece::of(&ReplyEnvelope { sequence: self.sequence, status, fds, reserved: 0 });
        let pieces: Vec<&Piece> = [&envelope].into_iter().chain(body).collect();
        self.message(&format!("Agent: {what}"), &pieces);
    }

    fn message(&mut self, title: &str, pieces: &[&Piece]) {
        let len: usize = pieces.iter().map(|piece| piece.bytes.len()).sum();
        let _ = writeln!(self.text, "{title} ({len} bytes)\n\n```text");
        for piece in pieces {
            let _ = writeln!(self.text, "{}", piece.layout.name);
            for field in piece.layout.fields {
                let bytes = &piece.bytes[field.offset..field.offset + field.size];
                let mut name = field.name;
                for line in bytes.chunks(16) {
                    let hex: Vec<String> = line.iter().map(|byte| format!("{byte:02x}")).collect();
                    let line = format!("    {:<48} {name}", hex.join(" "));
                    let _ = writeln!(self.text, "{}", line.trim_end());
                    name = "";
                }
            }
        }
        let _ = writeln!(self.text, "```\n");
    }
}
