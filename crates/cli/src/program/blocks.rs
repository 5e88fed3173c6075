//! A file that is read in large blocks, each at most once. A symbol table refers to thousands of
//! short strings, and a system call for each would take longer than everything else that
//! `softhca run` does. Principal type: [`Blocks`].

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;

use object::read::ReadCacheOps;

/// Bytes of a block.
const BLOCK: u64 = 64 * 1024;

/// A file, a position in it, and the blocks that were read.
#[derive(Debug)]
pub(super) struct Blocks {
    file: File,
    len: u64,
    position: u64,
    blocks: HashMap<u64, Vec<u8>>,
}

impl Blocks {
    pub(super) fn new(file: File) -> std::io::Result<Self> {
        let len = file.metadata()?.len();
        Ok(Self { file, len, position: 0, blocks: HashMap::new() })
    }

    /// What the file has at the position, up to the end of a block. Empty at the end of the file.
    fn rest(&mut self) -> Result<&[u8], ()> {
        let (number, within) = (self.position / BLOCK, (self.position % BLOCK) as usize);
        if !self.blocks.contains_key(&number) {
            let start = number * BLOCK;
            let mut block = vec![0; self.len.saturating_sub(start).min(BLOCK) as usize];
            self.file.read_exact_at(&mut block, start).map_err(drop)?;
            self.blocks.insert(number, block);
        }
        Ok(self.blocks[&number].get(within..).unwrap_or_default())
    }
}

impl ReadCacheOps for Blocks {
    fn len(&mut self) -> Result<u64, ()> {
        Ok(self.len)
    }

    fn seek(&mut self, position: u64) -> Result<u64, ()> {
        self.position = position;
        Ok(position)
    }

    fn read(&mut self, to: &mut [u8]) -> Result<usize, ()> {
        let rest = self.rest()?;
        let len = rest.len().min(to.len());
        to[..len].copy_from_slice(&rest[..len]);
        self.position += len as u64;
        Ok(len)
    }

    fn read_exact(&mut self, mut to: &mut [u8]) -> Result<(), ()> {
        while !to.is_empty() {
            let len = self.read(to)?;
            if len == 0 {
                return Err(());
            }
            to = &mut to[len..];
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn bytes_on_both_sides_of_a_block_and_at_the_end_are_read() {
        let mut file = tempfile::tempfile().expect("a file");
        let content: Vec<u8> = (0..BLOCK + 100).map(|at| (at % 251) as u8).collect();
        file.write_all(&content).expect("written");
        let mut blocks = Blocks::new(file).expect("a file");
        let mut bytes = [0; 50];
        blocks.seek(BLOCK - 20).expect("any position");
        blocks.read_exact(&mut bytes).expect("read");
        assert_eq!(bytes[..], content[BLOCK as usize - 20..][..50]);
        blocks.seek(BLOCK + 80).expect("any position");
        assert_eq!(blocks.read(&mut bytes), Ok(20));
        assert_eq!((blocks.read(&mut bytes), blocks.read_exact(&mut bytes)), (Ok(0), Err(())));
        blocks.seek(u64::MAX).expect("any position");
        assert_eq!(blocks.read(&mut bytes), Ok(0));
    }
}
