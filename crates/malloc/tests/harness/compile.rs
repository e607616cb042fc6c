//! Compiles C and C++ programs once per content: a program's folder in the target directory is named by a hash of
//! everything that went into it.

use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A folder of programs beside the drivers.
pub(crate) fn source_folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests")
        .join(name)
}

/// Turns sources of one folder into programs.
#[derive(Clone, Debug)]
pub(crate) struct Compiler {
    sources: PathBuf,
    extra: Vec<String>,
}

impl Compiler {
    /// A compiler for the sources in `tests/<folder>`.
    pub(crate) fn new(folder: &str) -> Self {
        Self {
            sources: source_folder(folder),
            extra: Vec::new(),
        }
    }

    /// Adds an argument for the compiler.
    pub(crate) fn argument(mut self, argument: impl Into<String>) -> Self {
        self.extra.push(argument.into());
        self
    }

    /// Compiles `source` and returns the program, or says why it does not compile.
    ///
    /// Builtins are off: a compiler that knows what malloc does may leave out the very calls that are tested.
    pub(crate) fn compile(&self, source: &str) -> Result<PathBuf, String> {
        let path = self.sources.join(source);
        let is_cxx = source.ends_with(".cc");
        let mut arguments: Vec<String> = ["-O1", "-g", "-fno-builtin", "-pthread"]
            .map(String::from)
            .into();
        if is_cxx {
            arguments.push("-std=c++17".into());
        }
        arguments.extend(self.extra.iter().cloned());

        let mut hasher = DefaultHasher::new();
        arguments.hash(&mut hasher);
        read(&path)?.hash(&mut hasher);
        for header in self.headers()? {
            read(&header)?.hash(&mut hasher);
        }
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join("programs")
            .join(format!("{:016x}", hasher.finish()));
        let program = folder.join(path.file_stem().unwrap_or_default());
        if program.exists() {
            return Ok(program);
        }

        fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let unfinished = folder.join(format!("unfinished-{}", std::process::id()));
        let compiler = if is_cxx { "g++" } else { "gcc" };
        let output = Command::new(compiler)
            .args(&arguments)
            .arg(&path)
            .arg("-o")
            .arg(&unfinished)
            .arg("-ldl")
            .output()
            .map_err(|error| format!("{compiler}: {error}"))?;
        if !output.status.success() {
            return Err(format!(
                "{compiler} {source} failed:\n{}",
                String::from_utf8_lossy(&output.stderr)
            ));
        }
        fs::rename(&unfinished, &program)
            .map_err(|error| format!("{}: {error}", program.display()))?;
        Ok(program)
    }

    /// Compiles several sources at once, and returns the programs in the same order.
    pub(crate) fn compile_all(&self, sources: &[String]) -> Result<Vec<PathBuf>, String> {
        let workers = std::thread::available_parallelism().map_or(1, usize::from);
        let chunk = sources.len().div_ceil(workers).max(1);
        std::thread::scope(|scope| {
            let running: Vec<_> = sources
                .chunks(chunk)
                .map(|part| {
                    scope.spawn(move || {
                        part.iter()
                            .map(|source| self.compile(source))
                            .collect::<Result<Vec<_>, _>>()
                    })
                })
                .collect();
            let mut programs = Vec::with_capacity(sources.len());
            for worker in running {
                programs.extend(worker.join().map_err(|_| "a compiling thread panicked")??);
            }
            Ok(programs)
        })
    }

    /// The names of all sources with the given ending, sorted.
    pub(crate) fn sources(&self, ending: &str) -> Result<Vec<String>, String> {
        let mut names: Vec<String> = self
            .entries()?
            .iter()
            .filter_map(|path| Some(path.file_name()?.to_str()?.to_owned()))
            .filter(|name| name.ends_with(ending))
            .collect();
        names.sort();
        Ok(names)
    }

    fn headers(&self) -> Result<Vec<PathBuf>, String> {
        let mut headers = self.entries()?;
        headers.retain(|path| path.extension().is_some_and(|ending| ending == "h"));
        headers.sort();
        Ok(headers)
    }

    fn entries(&self) -> Result<Vec<PathBuf>, String> {
        fs::read_dir(&self.sources)
            .and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect())
            .map_err(|error| format!("{}: {error}", self.sources.display()))
    }
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|error| format!("{}: {error}", path.display()))
}
