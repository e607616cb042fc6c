//! What hardening there is, by the names that users give.

/// A set of features (`FLAGSTONE_HARDEN`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features(u32);

impl Features {
    /// New slabs hand out their objects in random order.
    pub const RANDOM: Self = Self(1);
    /// A page that can not be touched at the end of every slab.
    pub const GUARDS: Self = Self(1 << 1);
    /// Memory is zeroed when it is freed.
    pub const ZERO_FREE: Self = Self(1 << 2);
    /// Memory is zeroed when it is allocated.
    pub const ZERO_ALLOC: Self = Self(1 << 3);
    /// Whatever is freed has to be a live object's start.
    pub const CHECK_FREE: Self = Self(1 << 4);
    /// Secret words behind live objects and in freed ones.
    pub const CANARY: Self = Self(1 << 5);
    /// The numbers of free objects are kept where owners of objects do not reach them.
    pub const ENCODE: Self = Self(1 << 6);
    /// Copies to and from the kernel, and by the C library's functions, must not span objects.
    pub const USERCOPY: Self = Self(1 << 7);

    /// Those that need the hardened path.
    pub(crate) const OBJECTS: Self = Self(
        Self::ZERO_FREE.0
            | Self::ZERO_ALLOC.0
            | Self::CHECK_FREE.0
            | Self::CANARY.0
            | Self::USERCOPY.0,
    );

    /// Those that need secret words in objects.
    pub(crate) const WORDS: Self = Self(Self::CHECK_FREE.0 | Self::CANARY.0 | Self::USERCOPY.0);

    /// What `1` stands for: all, where zeroing on free makes zeroing on allocation needless.
    pub const ALL: Self = Self(0xff & !Self::ZERO_ALLOC.0);

    /// The names.
    pub const NAMES: [(&'static str, Self); 8] = [
        ("random", Self::RANDOM),
        ("guards", Self::GUARDS),
        ("zero_free", Self::ZERO_FREE),
        ("zero_alloc", Self::ZERO_ALLOC),
        ("check_free", Self::CHECK_FREE),
        ("canary", Self::CANARY),
        ("encode", Self::ENCODE),
        ("usercopy", Self::USERCOPY),
    ];

    /// None.
    pub const NONE: Self = Self(0);

    /// The set that a value of `FLAGSTONE_HARDEN` names: `0`, `1` or names separated by commas; `None` if a name is unknown.
    #[must_use]
    pub fn parse(text: &[u8]) -> Option<Self> {
        match text {
            b"0" | b"" => return Some(Self::NONE),
            b"1" => return Some(Self::ALL),
            _ => {}
        }
        text.split(|b| *b == b',')
            .try_fold(Self::NONE, |set, name| {
                let (_, one) = Self::NAMES
                    .iter()
                    .find(|(known, _)| known.as_bytes() == name)?;
                Some(Self(set.0 | one.0))
            })
    }

    pub(crate) const fn from_bits_retain(bits: u32) -> Self {
        Self(bits)
    }

    pub(crate) const fn bits(self) -> u32 {
        self.0
    }

    /// Whether all of `other` are among these.
    #[inline(always)]
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether any of `other` is among these.
    #[inline(always)]
    #[must_use]
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// These without those of `other`.
    #[must_use]
    pub const fn difference(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

impl core::ops::BitOr for Features {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_make_sets_and_wrong_ones_none() {
        assert_eq!(Features::parse(b"1"), Some(Features::ALL));
        assert_eq!(Features::parse(b"0"), Some(Features::NONE));
        assert_eq!(
            Features::parse(b"canary,guards"),
            Some(Features::CANARY | Features::GUARDS)
        );
        for wrong in [&b"canari"[..], b"canary,", b"2", b",", b"all random"] {
            assert_eq!(Features::parse(wrong), None);
        }
        for (name, one) in Features::NAMES {
            assert_eq!(Features::parse(name.as_bytes()), Some(one));
        }
    }
}
