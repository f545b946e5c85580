package kernel

import (
	"fmt"
	"slices"
	"strings"

	"palyra/kernel/capsule"
)

// searchPath is where programs that are named without a slash are looked up,
// and the PATH that they see. The caller's PATH is foreign: whoever sets it
// would choose the program.
const searchPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// baseEnv is the environment of every call, sorted by name. Nothing of the
// caller's is in it.
func baseEnv() []string {
	return []string{"HOME=/tmp", "LANG=C.UTF-8", "PATH=" + searchPath, "TMPDIR=/tmp"}
}

// refusedNames are variables that make a program load or run something, or read
// its configuration elsewhere. Whoever may set them chooses the code that runs,
// whatever program the policy allowed. A trailing * matches any rest. It is a
// list of known ones and cannot be complete: policies see the names too.
var refusedNames = []string{
	// The dynamic loader and the C library.
	"LD_*", "DYLD_*", "GLIBC_TUNABLES", "MALLOC_*", "GCONV_PATH", "LOCPATH", "NLSPATH", "GETCONF_DIR",
	"HOSTALIASES", "LOCALDOMAIN", "RES_OPTIONS", "RESOLV_HOST_CONF", "TZDIR", "NIS_PATH", "LIBC_FATAL_STDERR_",
	// Shells.
	"BASH_ENV", "BASH_FUNC_*", "BASHOPTS", "SHELLOPTS", "ENV", "IFS", "CDPATH", "GLOBIGNORE", "PS4",
	"PROMPT_COMMAND", "ZDOTDIR", "FPATH", "KSH_ENV", "POSIXLY_CORRECT_ENV",
	// Programs that others start, and their helpers.
	"GIT_*", "SSH_ASKPASS", "SUDO_ASKPASS", "PAGER", "MANPAGER", "EDITOR", "VISUAL", "BROWSER", "LESSOPEN", "LESSCLOSE",
	"LESS", "MAKEFLAGS", "MFLAGS", "GNUMAKEFLAGS", "TAR_OPTIONS", "RSYNC_RSH", "RIPGREP_CONFIG_PATH", "CVS_RSH",
	"SVN_SSH", "TERMINFO", "TERMINFO_DIRS", "TERMCAP", "WGETRC", "CURL_HOME", "INPUTRC", "GREP_OPTIONS",
	// Interpreters and build tools.
	"PYTHON*", "PERL5*", "PERLLIB", "PERL_*", "RUBYOPT", "RUBYLIB", "RUBYSHELL", "GEM_*", "BUNDLE_*", "NODE_*", "NPM_CONFIG_*",
	"npm_config_*", "DENO_*", "BUN_*", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "JDK_JAVA_OPTIONS", "JAVA_OPTS", "CLASSPATH",
	"MAVEN_OPTS", "GRADLE_OPTS", "LUA_INIT*", "LUA_PATH*", "LUA_CPATH*", "PHPRC", "PHP_INI_SCAN_DIR", "TCLLIBPATH",
	"R_PROFILE*", "R_ENVIRON*", "DOTNET_*", "CORECLR_*", "COR_*", "ERL_*", "GUILE_*", "AWKPATH", "AWKLIBPATH", "GOFLAGS",
	"GOPROXY", "GOENV", "RUSTC*", "RUSTFLAGS", "CARGO_*", "CC", "CXX", "LDFLAGS", "CFLAGS", "GCC_EXEC_PREFIX", "COMPILER_PATH",
	"OPENSSL_CONF", "OPENSSL_ENGINES", "OPENSSL_MODULES", "GIO_MODULE_DIR", "GTK_*", "QT_PLUGIN_PATH", "XDG_CONFIG_*",
}

// environment returns the complete environment of a call, sorted by name.
func environment(added []string) ([]string, error) {
	if len(added) == 0 {
		return baseEnv(), nil
	}
	env := make(map[string]string)
	for _, e := range baseEnv() {
		env[capsule.Name(e)] = e
	}
	seen := make(map[string]bool)
	for _, e := range added {
		name, _, ok := strings.Cut(e, "=")
		switch {
		case !ok:
			return nil, usage("env_no_value", fmt.Sprintf("set environment %q", clip(name)), fmt.Errorf("not of the form NAME=VALUE"))
		case !validName(name):
			return nil, usage("env_bad_name", fmt.Sprintf("set environment %q", clip(name)),
				fmt.Errorf("a name is letters, digits and _, and does not begin with a digit"))
		case seen[name]:
			return nil, usage("env_repeated", fmt.Sprintf("set environment %q", clip(name)), fmt.Errorf("set twice"))
		case refusedName(name):
			return nil, usage("env_refused", fmt.Sprintf("set environment %q", clip(name)),
				fmt.Errorf("it makes programs load code or configuration")).
				WithHint("pass what the program needs as arguments or files of the workspace")
		}
		seen[name] = true
		env[name] = e
	}
	out := make([]string, 0, len(env))
	for _, e := range env {
		out = append(out, e)
	}
	slices.SortFunc(out, func(a, b string) int { return strings.Compare(capsule.Name(a), capsule.Name(b)) })
	return out, nil
}

func validName(name string) bool {
	if name == "" || len(name) > 256 {
		return false
	}
	for i := range len(name) {
		c := name[i]
		if c != '_' && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return true
}

func refusedName(name string) bool {
	return slices.ContainsFunc(refusedNames, func(r string) bool {
		p, open := strings.CutSuffix(r, "*")
		return open && strings.HasPrefix(name, p) || r == name
	})
}

// clip bounds a foreign name for a message.
func clip(s string) string {
	if len(s) > 64 {
		return s[:64] + "..."
	}
	return s
}
