//! Which CPUs there are: local APIC ids from ACPI's MADT.
//!
//! Only what is needed of ACPI: root pointer → RSDT or XSDT → the table signed `APIC` → its entries of type 0 (local APIC).
//! Physical memory is read through a closure, so that the walk can be tested in a process; a table that does not add up ends the walk.

/// Reads one byte of physical memory.
type Read<'a> = &'a dyn Fn(u64) -> u8;

/// CPUs that are looked for at most.
pub(crate) const MOST: usize = 64;

/// The APIC ids of the CPUs that may be started, in ACPI's order.
#[derive(Debug)]
pub(crate) struct ApicIds {
    ids: [u8; MOST],
    count: usize,
}

impl ApicIds {
    /// Walks from the root pointer at physical address `rsdp`. Empty if there is no MADT.
    pub(crate) fn find(rsdp: u64, read: Read<'_>) -> Self {
        let mut this = Self {
            ids: [0; MOST],
            count: 0,
        };
        if rsdp != 0
            && signature::<8>(rsdp, read) == *b"RSD PTR "
            && let Some(madt) = find_madt(rsdp, read)
        {
            this.take(madt, read);
        }
        this
    }

    /// The ids.
    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.ids[..self.count]
    }

    fn take(&mut self, madt: u64, read: Read<'_>) {
        const LOCAL_APIC: u8 = 0;
        const ENABLED: u8 = 1;
        let end = madt + length(madt, read);
        let mut at = madt + 44;
        while at + 2 <= end {
            let size = u64::from(read(at + 1));
            if size < 2 {
                return;
            }
            if read(at) == LOCAL_APIC
                && at + 8 <= end
                && read(at + 4) & ENABLED != 0
                && self.count < MOST
            {
                self.ids[self.count] = read(at + 3);
                self.count += 1;
            }
            at += size;
        }
    }
}

fn find_madt(rsdp: u64, read: Read<'_>) -> Option<u64> {
    let extended = read(rsdp + 15) >= 2 && number(rsdp + 24, 8, read) != 0;
    let (root, width) = if extended {
        (number(rsdp + 24, 8, read), 8)
    } else {
        (number(rsdp + 16, 4, read), 4)
    };
    let tables = (length(root, read).checked_sub(36)?) / width;
    (0..tables)
        .map(|n| number(root + 36 + n * width, width, read))
        .find(|&table| signature::<4>(table, read) == *b"APIC")
}

fn signature<const N: usize>(at: u64, read: Read<'_>) -> [u8; N] {
    core::array::from_fn(|n| read(at + n as u64))
}

/// The length in a table's header; a table is never longer than 1 MiB.
fn length(table: u64, read: Read<'_>) -> u64 {
    number(table + 4, 4, read).min(1 << 20)
}

/// A little-endian number of `bytes` bytes.
fn number(at: u64, bytes: u64, read: Read<'_>) -> u64 {
    (0..bytes)
        .rev()
        .fold(0, |sum, n| sum << 8 | u64::from(read(at + n)))
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec;
    use std::vec::Vec;

    fn table(signature: &[u8; 4], body: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; 36];
        bytes[..4].copy_from_slice(signature);
        bytes[4..8].copy_from_slice(&(36 + body.len() as u32).to_le_bytes());
        bytes.extend_from_slice(body);
        bytes
    }

    /// Memory with a root pointer at 16, the RSDT at 0x100, another table at 0x200, the MADT at 0x300.
    fn memory(madt: &[u8]) -> Vec<u8> {
        let mut memory = vec![0; 0x1000];
        memory[16..24].copy_from_slice(b"RSD PTR ");
        memory[32..36].copy_from_slice(&0x100u32.to_le_bytes());
        let rsdt = table(b"RSDT", &[0, 2, 0, 0, 0, 3, 0, 0]);
        for (at, bytes) in [
            (0x100, rsdt),
            (0x200, table(b"FACP", &[])),
            (0x300, madt.to_vec()),
        ] {
            memory[at..at + bytes.len()].copy_from_slice(&bytes);
        }
        memory
    }

    fn ids(memory: &[u8], rsdp: u64) -> Vec<u8> {
        let read = |at: u64| memory.get(at as usize).copied().unwrap_or(0);
        ApicIds::find(rsdp, &read).as_slice().to_vec()
    }

    #[test]
    fn enabled_local_apics_are_found_between_other_entries() {
        let mut body = vec![0; 8];
        body.extend([0, 8, 0, 0, 1, 0, 0, 0]);
        body.extend([1, 12, 0, 0, 0, 0, 0xc0, 0xfe, 0, 0, 0, 0]);
        body.extend([0, 8, 1, 4, 1, 0, 0, 0]);
        body.extend([0, 8, 2, 6, 0, 0, 0, 0]);
        assert_eq!(ids(&memory(&table(b"APIC", &body)), 16), [0, 4]);
    }

    #[test]
    fn an_entry_without_length_or_beyond_the_end_is_not_followed() {
        let mut body = vec![0; 8];
        body.extend([0, 8, 0, 7, 1, 0, 0, 0, 9, 0]);
        assert_eq!(ids(&memory(&table(b"APIC", &body)), 16), [7]);
        body.truncate(8 + 6);
        assert_eq!(ids(&memory(&table(b"APIC", &body)), 16), []);
    }

    #[test]
    fn without_a_root_pointer_there_are_none() {
        assert_eq!(ids(&[0; 64], 0), []);
        assert_eq!(ids(&[0; 64], 16), []);
    }
}
