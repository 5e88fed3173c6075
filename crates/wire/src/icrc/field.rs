//! The arithmetic of the ICRC: polynomials over GF(2) modulo Ethernet's polynomial, bit-reflected
//! as in CRC-32 (bit 31 is x^0). It serves headers, and calculation backwards. Not long runs of
//! bytes, for which there are instructions. Principal types: the CRC register is a `u32`;
//! [`Packed`] is the contribution of a field of two bytes.

/// Ethernet's polynomial.
const POLYNOMIAL: u32 = 0xedb8_8320;
/// The number one.
const ONE: u32 = 1 << 31;
/// 1/x: the number that gives one when multiplied by x.
const BACK: u32 = (ONE ^ POLYNOMIAL) << 1 | 1;

/// The register after eight bytes of ones, where every RoCEv2 ICRC starts.
pub(super) const ONES: u32 = ones();

/// `TABLES[k][b]`: the register after the byte b and k bytes of zeros, starting from 0.
static TABLES: [[u32; 256]; 8] = {
    let mut tables = [[0; 256]; 8];
    let mut behind = 0;
    while behind < 8 {
        tables[behind] = table(behind);
        behind += 1;
    }
    tables
};

/// The UDP length: two more bytes stand between it and the BTH.
pub(super) static UDP_LENGTH: Packed = Packed::before(2);
/// The total length of IPv4: behind it stand 16 more bytes of the IPv4 header, and the UDP header.
pub(super) static IPV4_LENGTH: Packed = Packed::before(24);
/// The identification of IPv4.
pub(super) static IPV4_ID: Packed = Packed::before(22);
/// The payload length of IPv6.
pub(super) static IPV6_LENGTH: Packed = Packed::before(42);

/// The contribution of a big-endian field of two bytes to the register at the BTH.
pub(super) struct Packed {
    high: [u32; 256],
    low: [u32; 256],
}

impl Packed {
    const fn before(behind: usize) -> Packed {
        Packed { high: table(behind + 1), low: table(behind) }
    }

    pub(super) fn at(&self, value: u16) -> u32 {
        let [high, low] = value.to_be_bytes();
        self.high[usize::from(high)] ^ self.low[usize::from(low)]
    }
}

/// The weights of 128 bits that have `bits` more bits behind them: the factors of their first and
/// their second half, in the form that the carry-less multiplication takes.
pub(super) const fn weights(bits: u32) -> [i64; 2] {
    weights_modulo(POLYNOMIAL, bits)
}

/// Like [`weights`], modulo another polynomial.
pub(super) const fn weights_modulo(polynomial: u32, bits: u32) -> [i64; 2] {
    // The product of two reversed numbers is one bit shorter than the reversed product. So each
    // factor has one more bit.
    [(power(polynomial, bits + 32) as i64) << 1, (power(polynomial, bits - 32) as i64) << 1]
}

/// The register after any number of bytes.
pub(super) fn through(register: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(register, |register, byte| TABLES[0][usize::from(register as u8 ^ byte)] ^ register >> 8)
}

/// The register after eight bytes.
pub(super) fn eight_through(register: u32, bytes: [u8; 8]) -> u32 {
    let word = u64::from_le_bytes(bytes) ^ u64::from(register);
    let bytes = word.to_le_bytes();
    (0..8).fold(0, |sum, index| sum ^ TABLES[7 - index][usize::from(bytes[index])])
}

/// Finds the two bytes, as a big-endian number, that give this `register` when `behind` bytes of
/// zeros follow them, starting from 0. For most registers there are no such bytes.
pub(super) fn two_bytes_before(behind: usize, register: u32) -> Option<u16> {
    // The register is the two bytes times x^32 times x^(8 * behind).
    let behind = behind + 4;
    let mut bytes = product(register, BACK_1[behind % STEP]);
    bytes = product(bytes, BACK_64[behind / STEP % STEP]);
    if behind >= STEP * STEP {
        bytes = product(bytes, BACK_4096[behind / (STEP * STEP) % STEP]);
    }
    // In the register, the first bit of a byte is the highest power, which is the lowest bit.
    (bytes & 0xffff == 0).then(|| ((bytes >> 16) as u16).swap_bytes())
}

const STEP: usize = 64;
/// `BACK_1[n]`: the factor that removes n bytes of zeros.
static BACK_1: [u32; STEP] = powers(squared(BACK, 3));
/// The same for units of 64 bytes.
static BACK_64: [u32; STEP] = powers(squared(BACK, 3 + 6));
/// The same for units of 4096 bytes.
static BACK_4096: [u32; STEP] = powers(squared(BACK, 3 + 12));

const fn ones() -> u32 {
    let mut register = u32::MAX;
    let mut bits = 0;
    while bits < 64 {
        register = times_x(register ^ 1);
        bits += 1;
    }
    register
}

const fn table(behind: usize) -> [u32; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut register = byte as u32;
        let mut bits = 0;
        while bits < 8 * (behind + 1) {
            register = times_x(register);
            bits += 1;
        }
        table[byte] = register;
        byte += 1;
    }
    table
}

const fn times_x(factor: u32) -> u32 {
    times_x_modulo(POLYNOMIAL, factor)
}

const fn times_x_modulo(polynomial: u32, factor: u32) -> u32 {
    factor >> 1 ^ polynomial & (factor & 1).wrapping_neg()
}

const fn product(left: u32, mut right: u32) -> u32 {
    let mut sum = 0;
    let mut bit = 32;
    while bit > 0 {
        bit -= 1;
        sum ^= right & (left >> bit & 1).wrapping_neg();
        right = times_x(right);
    }
    sum
}

/// The polynomial with its highest power, which a register leaves out, as a factor like those of
/// [`weights`].
pub(super) const DIVISOR: i64 = (POLYNOMIAL as i64) << 1 | 1;
/// The quotient of x^64 by the polynomial.
pub(super) const QUOTIENT: i64 = {
    let mut rest = 1_u128 << 64;
    let mut quotient = 0;
    let divisor = (DIVISOR as u64).reverse_bits() as u128 >> 31;
    let mut bit = 64;
    while bit >= 32 {
        if rest >> bit & 1 == 1 {
            rest ^= divisor << (bit - 32);
            // Reversed: the highest power, x^32, is the lowest bit.
            quotient |= 1 << (64 - bit);
        }
        bit -= 1;
    }
    quotient
};

/// x to the power of `exponent`.
const fn power(polynomial: u32, exponent: u32) -> u32 {
    let mut result = ONE;
    let mut done = 0;
    while done < exponent {
        result = times_x_modulo(polynomial, result);
        done += 1;
    }
    result
}

const fn squared(base: u32, times: u32) -> u32 {
    let mut result = base;
    let mut done = 0;
    while done < times {
        result = product(result, result);
        done += 1;
    }
    result
}

const fn powers(base: u32) -> [u32; STEP] {
    let mut all = [ONE; STEP];
    let mut index = 1;
    while index < STEP {
        all[index] = product(all[index - 1], base);
        index += 1;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_of_every_icrc() {
        assert_eq!(ONES, 0xdebb_20e3);
        assert_eq!(through(u32::MAX, &[0xff; 8]), ONES);
    }

    #[test]
    fn the_known_crc_of_nine_digits() {
        assert_eq!(!through(u32::MAX, b"123456789"), 0xcbf4_3926);
        let first: [u8; 8] = std::array::from_fn(|index| b"12345678"[index]);
        assert_eq!(!through(eight_through(u32::MAX, first), b"9"), 0xcbf4_3926);
    }

    #[test]
    fn back_undoes_forward() {
        assert_eq!(times_x(BACK), ONE);
        assert_eq!(product(BACK, ONE >> 1), ONE);
        for behind in [0, 1, 22, 34, 63, 64, 1046, 4095, 4096, 4128, 65_535] {
            for id in [0, 1, 0x80, 0x100, 0x1234, 0xffff] {
                let register = through(through(0, &u16::to_be_bytes(id)), &vec![0; behind]);
                assert_eq!(two_bytes_before(behind, register), Some(id), "{id:#x} and {behind} bytes");
                assert_eq!(two_bytes_before(behind, register ^ 1), None);
            }
        }
    }
}
