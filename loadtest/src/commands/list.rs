//! `loadtest drill list` and `loadtest drill show`.

use super::LoadOptions;
use crate::plan::{Drill, Overrides};
use anyhow::{Context, Result, bail};
use comfy_table::{Table, presets};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// The file of a drill that is named, or whose path is given.
///
/// # Errors
/// Names the drills that there are.
pub fn find(drills: &Path, drill: &str) -> Result<PathBuf> {
    let named = drills.join(drill).with_extension("toml");
    match [PathBuf::from(drill), named].into_iter().find(|path| path.is_file()) {
        Some(path) => Ok(path),
        None => bail!("no drill {drill:?}; there are {}", names(drills)?.join(", ")),
    }
}

fn names(drills: &Path) -> Result<Vec<String>> {
    let folder = fs::read_dir(drills).with_context(|| format!("no drills in {}", drills.display()))?;
    let files = folder.flatten().map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|ending| ending == "toml"));
    let mut names: Vec<String> = files.filter_map(|path| Some(path.file_stem()?.to_string_lossy().into_owned())).collect();
    names.sort();
    Ok(names)
}

pub fn list(drills: &Path, only_names: bool) -> Result<u8> {
    let names = names(drills)?;
    if only_names {
        names.iter().for_each(|name| println!("{name}"));
        return Ok(0);
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    for name in &names {
        table.add_row([name, &Drill::read(&find(drills, name)?, Overrides::default())?.about]);
    }
    println!("{table}");
    Ok(0)
}

pub fn show(file: &Path, options: &LoadOptions) -> Result<u8> {
    let Drill { name, about, plan, faults } = Drill::read(file, options.overrides())?;
    println!("{name}: {about}");
    println!(
        "load: {:.0} events/s a region for {:.0} s, acknowledged {:?}, seed {}",
        plan.load.events_per_s(),
        plan.duration_s,
        plan.ack,
        plan.seed
    );
    faults.iter().for_each(|fault| println!("{:>7.1} s  {}", fault.at * plan.duration_s, fault.action.words()));
    println!("then: every tier of every region equal within {} s, or the verdict is bad", plan.limits.converge_s);
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drill_is_found_by_name_or_path_and_what_is_there_is_said() {
        let drills = Path::new(env!("CARGO_MANIFEST_DIR")).join("drills");
        let path = find(&drills, "region-kill").unwrap();
        assert_eq!(find(&drills, &path.display().to_string()).unwrap(), path);
        assert!(find(&drills, "regionkill").unwrap_err().to_string().contains("region-kill, region-pause"));
        assert!(names(&drills).unwrap().len() >= 12);
    }
}
