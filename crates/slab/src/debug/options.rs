//! Which debug flags each cache gets, from a line in the syntax that users of Linux's `slub_debug` know.
//!
//! ```text
//!   FZPU                    these flags for every cache
//!   FZ,kmalloc-*,dentry;P   flags for the caches named, and others for the rest
//!   -,kmalloc-64;F          none for one cache
//! ```
//!
//! Blocks are separated by `;`, the names in a block by `,`. Of several blocks that name a cache the first counts; where none names it, the last block
//! without names. Nothing is allocated: the line is read again for every cache that is made.

use core::fmt;
use flagstone_frames::glob;

/// What is done to find mistakes with the objects of a cache: a set of flags.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct DebugFlags(u8);

impl DebugFlags {
    /// Nothing.
    pub const NONE: Self = Self(0);
    /// Consistency checks when an object is allocated and freed (`F`).
    pub const CHECKS: Self = Self(1);
    /// Red zones on both sides of an object (`Z`).
    pub const RED_ZONES: Self = Self(1 << 1);
    /// Free objects hold a pattern that is looked at when they are handed out again (`P`).
    pub const POISON: Self = Self(1 << 2);
    /// Who allocated and freed an object last (`U`).
    pub const TRACKS: Self = Self(1 << 3);
    /// Every allocation and free is logged (`T`).
    pub const TRACE: Self = Self(1 << 4);
    /// The cache takes part in fault injection where that is for marked caches only (`A`).
    pub const FAILSLAB: Self = Self(1 << 5);
    /// The pages of free objects can not be accessed (`V`; not in Linux's syntax).
    pub const UNMAP: Self = Self(1 << 6);

    /// The letter and the flag of each.
    const LETTERS: [(u8, Self); 7] = [
        (b'F', Self::CHECKS),
        (b'Z', Self::RED_ZONES),
        (b'P', Self::POISON),
        (b'U', Self::TRACKS),
        (b'T', Self::TRACE),
        (b'A', Self::FAILSLAB),
        (b'V', Self::UNMAP),
    ];

    /// What a line without letters asks for.
    pub const DEFAULT: Self =
        Self(Self::CHECKS.0 | Self::RED_ZONES.0 | Self::POISON.0 | Self::TRACKS.0);

    /// Whether all flags of `other` are set.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether no flag is set.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The flags of both.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The flag of a letter, in either case.
    fn of_letter(letter: u8) -> Option<Self> {
        let letter = letter.to_ascii_uppercase();
        let found = Self::LETTERS.iter().find(|(known, _)| *known == letter);
        found.map(|(_, flag)| *flag)
    }
}

impl fmt::Display for DebugFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use fmt::Write as _;
        if self.is_empty() {
            return f.write_char('-');
        }
        Self::LETTERS
            .iter()
            .filter(|(_, flag)| self.contains(*flag))
            .try_for_each(|(letter, _)| f.write_char(*letter as char))
    }
}

impl fmt::Debug for DebugFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DebugFlags({self})")
    }
}

/// A line of options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DebugOptions<'a>(&'a str);

impl<'a> DebugOptions<'a> {
    /// The options in `line`.
    #[must_use]
    pub const fn new(line: &'a str) -> Self {
        Self(line)
    }

    /// Tells `report` of every letter that is no flag. They are ignored otherwise.
    pub fn unknown(self, report: &mut dyn FnMut(char)) {
        for block in self.0.split(';') {
            for letter in letters(block) {
                if *letter != b'-' && DebugFlags::of_letter(*letter).is_none() {
                    report(*letter as char);
                }
            }
        }
    }

    /// The flags of the cache with this name.
    #[must_use]
    pub fn flags_of(self, cache: &str) -> DebugFlags {
        let mut general = DebugFlags::NONE;
        for block in self.0.split(';') {
            let mut names = block.split(',').skip(1).peekable();
            if names.peek().is_none() {
                general = flags(block);
            } else if names.any(|pattern| glob(pattern, cache)) {
                return flags(block);
            }
        }
        general
    }
}

fn letters(block: &str) -> &[u8] {
    block.split(',').next().unwrap_or_default().as_bytes()
}

fn flags(block: &str) -> DebugFlags {
    let letters = letters(block);
    if letters.is_empty() {
        return DebugFlags::DEFAULT;
    }
    if letters.contains(&b'-') {
        return DebugFlags::NONE;
    }
    letters
        .iter()
        .filter_map(|letter| DebugFlags::of_letter(*letter))
        .fold(DebugFlags::NONE, DebugFlags::union)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn letters_of(line: &str, cache: &str) -> std::string::String {
        std::format!("{}", DebugOptions::new(line).flags_of(cache))
    }

    #[test]
    fn flags_without_names_are_for_every_cache() {
        assert_eq!(letters_of("UPZF", "x"), "FZPU");
        assert_eq!(letters_of("fzptuav", "x"), "FZPUTAV");
        assert_eq!(letters_of("", "x"), "FZPU");
        assert_eq!(letters_of("-", "x"), "-");
    }

    #[test]
    fn names_choose_caches_and_the_first_block_that_names_one_counts() {
        let line = "F;U,kmalloc-64;ZP,kmalloc-*,dentry;-,inode_?";
        let wanted = [
            ("kmalloc-32", "ZP"),
            ("kmalloc-64", "U"),
            ("dentry", "ZP"),
            ("dentry2", "F"),
            ("inode_a", "-"),
            ("inode_", "F"),
        ];
        for (cache, flags) in wanted {
            assert_eq!(letters_of(line, cache), flags, "{cache}");
        }
        assert_eq!(letters_of(",dentry", "dentry"), "FZPU");
        assert_eq!(letters_of(",dentry", "other"), "-");
    }

    #[test]
    fn unknown_letters_are_told_and_ignored() {
        let line = DebugOptions::new("FqZ,qname;9P");
        let mut told = std::vec::Vec::new();
        line.unknown(&mut |letter| told.push(letter));
        assert_eq!(told, ['q', '9']);
        assert_eq!(
            line.flags_of("qname"),
            DebugFlags::CHECKS.union(DebugFlags::RED_ZONES)
        );
    }
}
