//! What a return address is called: told by whoever knows the modules of the program, or the symbols of a kernel.

use core::fmt;

/// A return address, as far as it is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Symbol<'a> {
    /// The file or module that the address is in.
    pub module: Option<&'a str>,
    /// How far the address is from where the module was loaded, in bytes.
    pub module_offset: usize,
    /// The function.
    pub function: Option<&'a str>,
    /// How far the address is from the function's start, in bytes.
    pub offset: usize,
    /// The function's length in bytes.
    pub size: usize,
}

/// Whoever knows what return addresses are called.
pub trait Symbols {
    /// Tells what is known of the code before return address `pc`; does not call `tell` if that is nothing.
    fn resolve(&self, pc: usize, tell: &mut dyn FnMut(Symbol<'_>));
}

/// Knows nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoSymbols;

impl Symbols for NoSymbols {
    fn resolve(&self, _pc: usize, _tell: &mut dyn FnMut(Symbol<'_>)) {}
}

/// A frame as reports print it: `0x7f12… (module+0xoff)` in a process, `function+0xoff/0xsize [module]` where the function is known.
pub(super) struct Frame<'a> {
    pub(super) pc: usize,
    pub(super) symbols: &'a dyn Symbols,
}

impl fmt::Display for Frame<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut told = None;
        self.symbols.resolve(self.pc, &mut |symbol| {
            if told.is_none() {
                told = Some(self.write(f, symbol));
            }
        });
        told.unwrap_or_else(|| write!(f, "{:#x}", self.pc))
    }
}

impl Frame<'_> {
    fn write(&self, f: &mut fmt::Formatter<'_>, symbol: Symbol<'_>) -> fmt::Result {
        match (symbol.function, symbol.module) {
            (Some(function), module) => {
                write!(f, "{function}+{:#x}/{:#x}", symbol.offset, symbol.size)?;
                match module {
                    Some(module) => write!(f, " [{module}]"),
                    None => Ok(()),
                }
            }
            (None, Some(module)) => {
                write!(f, "{:#x} ({module}+{:#x})", self.pc, symbol.module_offset)
            }
            (None, None) => write!(f, "{:#x}", self.pc),
        }
    }
}
