//! Nothing outlives a test: every process the harness starts is put on a leash that ends when the test binary does.
//!
//! One small shell per test binary reads a pipe from it. Each line adds or removes a process group, or names a
//! directory to remove. However the test binary ends (return, panic, Ctrl-C, `kill -9`), the pipe closes, the shell
//! sees the end of file, kills the groups that are left and removes the directories. Works without privileges, also
//! for stopped processes, and for any program.

use std::{
    io::{self, Write},
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, ChildStdin, Command, Stdio},
    sync::{Mutex, OnceLock, PoisonError},
};

/// Reads `+ GROUP`, `- GROUP`, `d DIRECTORY` and `k DIRECTORY` (keep it after all) until the end of file.
const SHELL: &str = r#"
trap '' HUP INT TERM
groups=' '
directories=''
while read -r verb name; do
  case $verb in
  +) groups="$groups$name " ;;
  -) case $groups in *" $name "*) groups="${groups%%" $name "*} ${groups#*" $name "}" ;; esac ;;
  d) directories="$directories$name
" ;;
  k) directories=$(printf %s "$directories" | grep -vxF -- "$name")
     directories="$directories
" ;;
  esac
done
for group in $groups; do kill -KILL "-$group"; done 2>/dev/null
printf %s "$directories" | while read -r directory; do
  case $directory in /*/*) rm -rf -- "$directory" || { sleep 1; rm -rf -- "$directory"; } ;; esac
done
"#;

struct Leash {
    /// Never waited for: it ends after us.
    _shell: Child,
    pipe: ChildStdin,
}

static LEASH: OnceLock<Mutex<io::Result<Leash>>> = OnceLock::new();

fn start() -> io::Result<Leash> {
    let mut shell = Command::new("sh")
        .args(["-c", SHELL])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .current_dir("/")
        .process_group(0)
        .spawn()?;
    let pipe = shell.stdin.take().ok_or_else(|| io::Error::other("the shell has no standard input"))?;
    Ok(Leash { _shell: shell, pipe })
}

fn tell(verb: char, name: &str) -> io::Result<()> {
    let mut leash = LEASH.get_or_init(|| Mutex::new(start())).lock().unwrap_or_else(PoisonError::into_inner);
    match &mut *leash {
        Ok(leash) => leash.pipe.write_all(format!("{verb} {name}\n").as_bytes()),
        Err(error) => Err(io::Error::new(error.kind(), error.to_string())),
    }
}

/// Has the process group killed when this process ends.
pub(crate) fn hold(group: u32) -> io::Result<()> {
    tell('+', &group.to_string())
}

/// Takes back [`hold`], after the group's leader was waited for and before its number can be used again.
pub(crate) fn release(group: u32) -> io::Result<()> {
    tell('-', &group.to_string())
}

/// Has the directory removed when this process ends.
pub(crate) fn remove_at_end(directory: &Path) -> io::Result<()> {
    tell('d', &directory.to_string_lossy())
}

/// Takes back [`remove_at_end`].
pub(crate) fn keep(directory: &Path) -> io::Result<()> {
    tell('k', &directory.to_string_lossy())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The script by itself: what it kills and removes when its input ends.
    #[test]
    fn kills_what_is_held_and_removes_what_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let (gone, kept) = (directory.path().join("gone"), directory.path().join("kept"));
        std::fs::create_dir_all(&gone).unwrap();
        std::fs::create_dir_all(&kept).unwrap();
        let sleep = || Command::new("sleep").arg("600").process_group(0).spawn().unwrap();
        let (mut held, mut released) = (sleep(), sleep());

        let mut leash = start().unwrap();
        for line in [
            format!("+ {}", held.id()),
            format!("+ {}", released.id()),
            format!("- {}", released.id()),
            format!("d {}", gone.display()),
            format!("d {}", kept.display()),
            format!("k {}", kept.display()),
        ] {
            leash.pipe.write_all(format!("{line}\n").as_bytes()).unwrap();
        }
        let Leash { _shell: mut shell, pipe } = leash;
        drop(pipe);

        assert!(!held.wait().unwrap().success(), "the held process was killed");
        assert!(shell.wait().unwrap().success());
        assert_eq!(released.try_wait().unwrap(), None, "the released process lives");
        assert!(!gone.exists());
        assert!(kept.exists());
        released.kill().unwrap();
        released.wait().unwrap();
    }
}
