//! Text that must not be in the repository: places of one machine, hosts of one registry.

/// Folders of one machine. Written in halves, so that this file does not find itself.
const FOLDERS: [&str; 3] = [concat!("/wo", "rk"), concat!("/ro", "ot"), concat!("/ho", "me")];
/// Parts of the host names of package registries and their mirrors.
const HOSTS: [&str; 9] = [
    concat!("crates", ".io/"),
    concat!("static.crates", ".io"),
    concat!("index.crates", ".io"),
    concat!("repo1.", "maven"),
    concat!("repo.", "maven"),
    concat!("pypi", ".org"),
    concat!("pythonhosted", ".org"),
    concat!("proxy.", "golang"),
    concat!("registry.", "npmjs"),
];

/// What a line holds that it must not, if anything.
pub fn forbidden(line: &str) -> Option<&'static str> {
    FOLDERS.into_iter().find(|folder| names_folder(line, folder)).or_else(|| HOSTS.into_iter().find(|host| line.contains(host)))
}

/// The folder itself or something in it, not a part of a longer path or word.
fn names_folder(line: &str, folder: &str) -> bool {
    line.match_indices(folder).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + folder.len()..].chars().next();
        let starts = before.is_none_or(|c| !c.is_alphanumeric() && !['/', '.', '_', '-', '}', ')', '$', '~', '>'].contains(&c));
        starts && after.is_none_or(|c| c == '/' || c.is_whitespace() || ['"', '\'', '`', ')', ':', ','].contains(&c))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machines_folders_and_a_registrys_hosts_are_found() {
        for line in
            [concat!("cd /wo", "rk/main"), concat!("\"/ro", "ot\""), concat!("x=/ho", "me/me/x"), concat!("https://pypi", ".org/simple")]
        {
            assert!(forbidden(line).is_some(), "{line}");
        }
        for line in ["/network/x", "a/work/b", "/workers", "the work", "$ROOT/root/x", "Cargo registry", "/v1/homes"] {
            assert_eq!(forbidden(line), None, "{line}");
        }
    }
}
