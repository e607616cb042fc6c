//! Contents of memory, and of the shadow, as reports print them.

use core::fmt;
use flagstone_types::Bytes;

/// Bytes of memory under a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dump<'a> {
    /// What they are: "Bytes b4", "Object", "Redzone", "Padding".
    pub label: &'a str,
    /// The address of the first one.
    pub address: usize,
    /// What was there.
    pub bytes: &'a [u8],
}

/// Bytes to a line.
const LINE: usize = 16;

impl fmt::Display for Dump<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (k, line) in self.bytes.chunks(LINE).enumerate() {
            write!(f, "{:<8} {:016x}: ", self.label, self.address + k * LINE)?;
            for k in 0..LINE {
                match line.get(k) {
                    Some(byte) => write!(f, "{byte:02x} ")?,
                    None => f.write_str("   ")?,
                }
            }
            f.write_str(" ")?;
            for byte in line {
                let shown = matches!(byte, b' '..=b'~');
                write!(f, "{}", if shown { *byte as char } else { '.' })?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

/// The rows of the shadow around an address, copied when the bug was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShadowRows {
    /// The address that is marked.
    pub address: usize,
    /// The memory that the first row is about.
    pub start: usize,
    /// The rows; `None` where there is no shadow.
    pub rows: [Option<[u8; Self::BYTES]>; Self::ROWS],
}

impl ShadowRows {
    /// Shadow bytes in a row.
    pub const BYTES: usize = 16;
    /// Rows: two before that of the address, and two behind it.
    pub const ROWS: usize = 5;
    /// Memory that a row is about.
    pub const SPAN: Bytes = Bytes(Self::BYTES * 8);

    /// The address of the memory that row `row` is about.
    #[must_use]
    pub const fn row_address(&self, row: usize) -> usize {
        self.start.wrapping_add(row * Self::SPAN.0)
    }
}

impl fmt::Display for ShadowRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (k, row) in self.rows.iter().enumerate() {
            let Some(row) = row else { continue };
            let start = self.row_address(k);
            let inside = self.address.wrapping_sub(start);
            let marked = inside < Self::SPAN.0;
            write!(f, "{}{start:016x}:", if marked { '>' } else { ' ' })?;
            for byte in row {
                write!(f, " {byte:02x}")?;
            }
            writeln!(f)?;
            if marked {
                // Under the first digit of the byte: the mark, sixteen digits, a colon, a blank; then three columns to a byte.
                writeln!(f, "{:>1$}", '^', 19 + inside / 8 * 3 + 1)?;
            }
        }
        Ok(())
    }
}
