//! Log files of the programs under test.

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    path::Path,
};

/// No more than this is read from the end of a log.
const TAIL_BYTES: u64 = 256 * 1024;

/// The last `lines` lines of a log file (of its last 256 KiB). An unreadable file yields the error's text: a log is
/// read to explain another failure, which must not be hidden.
pub fn tail(path: &Path, lines: usize) -> String {
    match read_end(path) {
        Ok(text) => {
            let all: Vec<&str> = text.lines().collect();
            all.get(all.len().saturating_sub(lines)..).unwrap_or_default().join("\n")
        }
        Err(error) => format!("{} cannot be read: {error}", path.display()),
    }
}

fn read_end(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES)))?;
    let mut bytes = Vec::new();
    file.take(TAIL_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tail_gives_the_last_lines() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "one\ntwo\nthree\n").unwrap();
        assert_eq!(tail(file.path(), 2), "two\nthree");
        assert_eq!(tail(file.path(), 9), "one\ntwo\nthree");
        assert!(tail(Path::new("/nowhere"), 1).contains("cannot be read"));
    }
}
