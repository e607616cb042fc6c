//! Messages on standard error: formatted into a buffer on the stack and written by one call, so that nothing is
//! allocated and lines of threads do not mix. Longer lines are cut.

use core::fmt::{self, Write as _};

use super::syscall;

const LONGEST: usize = 512;

struct Line {
    text: [u8; LONGEST],
    filled: usize,
}

impl fmt::Write for Line {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        // One byte stays for the line end.
        let room = LONGEST - 1 - self.filled;
        let taken = s.len().min(room);
        self.text[self.filled..self.filled + taken].copy_from_slice(&s.as_bytes()[..taken]);
        self.filled += taken;
        if taken == s.len() {
            Ok(())
        } else {
            Err(fmt::Error)
        }
    }
}

/// Writes `flagstone: ` and the message as a line to file descriptor `fd`.
pub(super) fn write_line(fd: i32, message: fmt::Arguments<'_>) {
    let mut line = Line {
        text: [0; LONGEST],
        filled: 0,
    };
    // A line that is too long is written as far as it fits.
    let _ = write!(line, "flagstone: {message}");
    line.text[line.filled] = b'\n';
    syscall::write_all(fd, &line.text[..=line.filled]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;

    fn written(message: fmt::Arguments<'_>) -> std::string::String {
        use std::os::fd::AsRawFd as _;
        let (mut reader, writer) = std::io::pipe().unwrap();
        write_line(writer.as_raw_fd(), message);
        drop(writer);
        let mut text = std::string::String::new();
        reader.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn a_message_is_one_line_with_the_name_in_front() {
        assert_eq!(
            written(format_args!("{} is {:#x}", "it", 255)),
            "flagstone: it is 0xff\n"
        );
    }

    #[test]
    fn a_long_message_is_cut() {
        let text = written(format_args!("{:>900}", "x"));
        assert_eq!(text.len(), LONGEST);
        assert!(text.ends_with('\n'));
    }
}
