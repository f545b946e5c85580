package kernel

import (
	"fmt"
	"slices"
	"strings"

	vocabulary "palyra/call"
	"palyra/isolate"
	"palyra/kernel/capsule"
)

// searchPath is where bare program names are looked up, and the PATH that programs see. The
// caller's PATH is foreign: its author would choose the program.
const searchPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// baseEnv is the environment of every call, sorted by name. Nothing in it comes from the
// caller.
func baseEnv() []string {
	return []string{"HOME=/tmp", "LANG=C.UTF-8", "PATH=" + searchPath, "TMPDIR=/tmp"}
}

// loaderNames are variables of the dynamic loader, the C library and shells, by which code comes
// into any program. Sealing looks for libraries as if none were set, so not even the operator
// can declare one. A * at either end matches any text.
var loaderNames = []string{
	"LD_*", "DYLD_*", "GLIBC_TUNABLES", "MALLOC_*", "GCONV_PATH", "LOCPATH", "LOCALE_ARCHIVE*", "NLSPATH", "GETCONF_DIR",
	"HOSTALIASES", "LOCALDOMAIN", "RES_OPTIONS", "RESOLV_HOST_CONF", "TZDIR", "NIS_PATH", "LIBC_FATAL_STDERR_",
	"BASH_ENV", "BASH_FUNC_*", "BASHOPTS", "SHELLOPTS", "ENV", "IFS", "CDPATH", "GLOBIGNORE", "PS4",
	"PROMPT_COMMAND", "ZDOTDIR", "FPATH", "KSH_ENV", "POSIXLY_CORRECT_ENV", "CONFIG_SITE", "CONFIG_SHELL",
}

// refusedNames are variables that make a program load or run code, or read its configuration
// elsewhere. A caller who sets one chooses the code that runs, whatever program the policy
// allowed; the operator may declare them. The list can't be complete: policies and the
// approver see the value of every variable that differs from the built one.
var refusedNames = []string{
	// Programs that others start, and their helpers.
	"GIT_*", "HGRCPATH", "*_ASKPASS", "PAGER", "MANPAGER", "*_PAGER", "EDITOR", "VISUAL", "*_EDITOR", "HGEDITOR", "CVSEDITOR", "FCEDIT", "LESSEDIT",
	"BROWSER", "LESS", "LESSOPEN", "LESSCLOSE", "LESSKEY*", "MANOPT", "MANROFFOPT", "MAKEFLAGS", "MFLAGS", "GNUMAKEFLAGS", "MAKEFILES", "MAKE",
	"TAR_OPTIONS", "ZIP", "ZIPOPT", "UNZIP", "UNZIPOPT", "GROFF_*", "RSYNC_RSH", "RSYNC_CONNECT_PROG", "RSYNC_SHELL", "RIPGREP_CONFIG_PATH", "FZF_DEFAULT_*", "CVS_RSH", "SVN_SSH",
	"TERMINFO", "TERMINFO_DIRS", "TERMCAP", "WGETRC", "CURL_HOME", "INPUTRC", "GREP_OPTIONS", "APT_CONFIG", "RPM_CONFIGDIR", "VIMINIT", "EXINIT", "GVIMINIT",
	"MYVIMRC", "NVIM_APPNAME", "EMACSLOADPATH", "ANSIBLE_CONFIG", "ANSIBLE_LIBRARY", "*_PLUGINS", "PSQLRC", "SCREENRC", "MAILRC", "MAILCAPS",
	// Interpreters and build tools.
	"PYTHON*", "IPYTHONDIR", "PYTEST_ADDOPTS", "PIP_*", "UV_PYTHON*", "PERL5*", "PERLLIB", "PERL_*", "PERLDB*", "RUBYOPT", "RUBYLIB", "RUBYSHELL",
	"RAKEOPT", "IRBRC", "GEM_*", "BUNDLE_*", "NODE_*", "TS_NODE_*", "ELECTRON_RUN_AS_NODE", "NPM_CONFIG_*", "npm_config_*", "YARN_*", "COREPACK_*",
	"DENO_*", "BUN_*", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "JDK_JAVA_OPTIONS", "*JAVA_OPTS", "CLASSPATH", "MAVEN_OPTS", "MAVEN_ARGS", "GRADLE_OPTS",
	"ANT_OPTS", "ANT_ARGS", "SBT_OPTS", "JAVACMD", "LUA_INIT*", "LUA_PATH*", "LUA_CPATH*", "PHPRC", "PHP_INI_SCAN_DIR", "COMPOSER", "COMPOSER_VENDOR_DIR", "TCLLIBPATH",
	"R_PROFILE*", "R_ENVIRON*", "R_LIBS*", "JULIA_LOAD_PATH", "JULIA_DEPOT_PATH", "JULIA_PROJECT", "DOTNET_*", "CORECLR_*", "COR_*", "COMPlus_*",
	"ASPNETCORE_HOSTINGSTARTUPASSEMBLIES", "MONO_PATH", "MONO_CONFIG", "MONO_ENV_OPTIONS", "MSBUILDSDKSPATH", "MSBUILDEXTENSIONSPATH", "MSBUILD_EXE_PATH",
	"ERL_*", "ELIXIR_ERL_OPTIONS", "MIX_ARCHIVES", "MIX_PATH", "MIX_EXS", "GUILE_*", "OCAMLPATH", "OCAMLLIB", "OCAMLFIND_CONF", "CAML_LD_LIBRARY_PATH",
	"AWKPATH", "AWKLIBPATH", "GOFLAGS", "GOPROXY", "GOENV", "GOCACHEPROG", "CGO_CFLAGS*", "CGO_CPPFLAGS*", "CGO_CXXFLAGS*", "CGO_LDFLAGS*", "RUSTC*", "RUSTFLAGS",
	"RUSTDOC*", "CARGO_*", "CC", "CXX", "CPP", "AR", "AS", "LD", "NM", "FC", "F77", "LEX", "YACC", "RANLIB", "HOSTCC", "PKG_CONFIG",
	"LDFLAGS", "CFLAGS", "CXXFLAGS", "CPPFLAGS", "FFLAGS", "FCFLAGS", "ASFLAGS", "ARFLAGS", "LDLIBS", "LIBS", "GCC_EXEC_PREFIX", "COMPILER_PATH",
	"AUTOCONF", "AUTOMAKE", "ACLOCAL", "AUTOM4TE", "CMAKE_TOOLCHAIN_FILE", "CMAKE_GENERATOR*", "*_COMPILER_LAUNCHER", "NIX_LD*", "NIX_PATH", "NIX_CONFIG",
	"OPENSSL_CONF", "OPENSSL_ENGINES", "OPENSSL_MODULES", "SASL_PATH", "KRB5_CONFIG", "ODBCINI", "ODBCSYSINI", "GIO_MODULE_DIR", "GIO_EXTRA_MODULES", "GTK_*",
	"GDK_PIXBUF_MODULE*", "GST_PLUGIN*", "GST_REGISTRY*", "QT_PLUGIN_PATH", "QT_QPA_PLATFORM_PLUGIN_PATH", "QML_IMPORT_PATH", "QML2_IMPORT_PATH", "VK_ICD_FILENAMES",
	"VK_DRIVER_FILES", "VK_LAYER_PATH", "VK_ADD_LAYER_PATH", "OCL_ICD_*", "LIBGL_DRIVERS_PATH", "ALSA_CONFIG*", "MAGICK_CONFIGURE_PATH", "MAGICK_CODER_*", "GS_OPTIONS",
	"XDG_CONFIG_*",
}

// codeNames are variables that hold one or more places where programs look for code, or for
// configuration that names code. They are harmless while the places are the system's own. Other
// ones are in context.env_code, which a policy of the built-in set forbids.
var codeNames = []string{
	"PATH", "HOME", "SHELL", "XDG_DATA_*", "XDG_CACHE_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR", "*_HOME", "GNUPGHOME", "MANPATH", "INFOPATH",
	"GOPATH", "GOROOT", "GOTOOLDIR", "GOMODCACHE", "GOCACHE", "VIRTUAL_ENV", "CONDA_PREFIX", "PYENV_ROOT", "RBENV_ROOT", "NVM_DIR", "SDKMAN_DIR", "ASDF_DIR", "ASDF_DATA_DIR", "VIM", "VIMRUNTIME",
	"PKG_CONFIG_PATH", "PKG_CONFIG_LIBDIR", "PKG_CONFIG_SYSROOT_DIR", "CMAKE_PREFIX_PATH", "CMAKE_PROGRAM_PATH", "CMAKE_MODULE_PATH", "ACLOCAL_PATH", "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "OBJC_INCLUDE_PATH", "LIBRARY_PATH", "SDKROOT", "SYSROOT",
	"TEXINPUTS", "TEXMF*", "GS_LIB", "DOCKER_CONFIG", "KUBECONFIG", "AWS_CONFIG_FILE", "BOTO_CONFIG", "CLOUDSDK_CONFIG", "NETRC", "PGSYSCONFDIR",
	"PGSERVICEFILE",
}

// localeNames are variables that hold the name of a locale. A name with a slash is a path to
// the C library, which reads files there unchecked, among them texts with printf formats.
// LANGUAGE also leaves the folder of locales with "..".
var localeNames = []string{"LANG", "LANGUAGE", "LC_*"}

// builtEnv is baseEnv with the kind of the call's terminal, if it has one.
func builtEnv(tty *vocabulary.TTY) []string {
	env := baseEnv()
	if tty != nil {
		env = append(env, termPrefix+tty.Term)
	}
	return env
}

const termPrefix = "TERM="

func changedEnv(env []string, tty *vocabulary.TTY) (out []string) {
	built := append(builtEnv(tty), isolate.RootsEnv()...) // no caller can set one to that value
	for _, e := range env {
		if !slices.Contains(built, e) {
			out = append(out, e)
		}
	}
	return out
}

// shownEnv is changedEnv with the variables that choose code first, because a card has room for
// only some.
func shownEnv(env []string, tty *vocabulary.TTY) []string {
	out := changedEnv(env, tty)
	slices.SortStableFunc(out, func(a, b string) int { return rank(a) - rank(b) })
	return out
}

func builtName(name string, tty *vocabulary.TTY) bool {
	return slices.ContainsFunc(builtEnv(tty), func(b string) bool { return capsule.Name(b) == name })
}

func rank(e string) int {
	name := capsule.Name(e)
	switch {
	case builtName(name, nil):
		return 0
	case matchesName(codeNames, name):
		return 1
	}
	return 2
}

// codeEnv returns the names of the changed variables that lead a program to code that the call,
// or a user other than root, can write, and that lies in no mount; caches are
// policy's to decide about as such. It's sorted, as env is.
func (p *place) codeEnv(env, caches []string) (names []string) {
	for _, e := range changedEnv(env, nil) {
		if slices.ContainsFunc(caches, func(name string) bool { return slices.Contains(isolate.CacheVariables(name), e) }) {
			continue
		}
		name, value, _ := strings.Cut(e, "=")
		// The operator alone sets a refused name, and most values of those are no places.
		place := matchesName(codeNames, name) || (matchesName(localeNames, name) || refusedName(name)) && strings.Contains(value, "/")
		if place && !p.leadsToSystem(value, name != "PATH") {
			names = append(names, name)
		}
	}
	return names
}

// leadsToSystem reports whether a value is one of the system's places or one in a mount, which
// policy decides about as such, or a list of them. An
// empty or relative place isn't: it leads to the working directory. whole says that some reader
// may take a list for the name of one place, which none of PATH's does.
func (p *place) leadsToSystem(value string, whole bool) bool {
	built := strings.Split(searchPath, ":")
	if len(value) > 4095 {
		return false
	}
	lists := [][]string{strings.Split(value, ":")}
	if whole {
		lists = append(lists, []string{value})
	}
	for _, list := range lists {
		for _, v := range list {
			if slices.Contains(built, v) {
				continue
			}
			// A reader may split one name at a blank, comma or semicolon.
			if strings.ContainsAny(v, " \t\r\n,;|~$") || !p.settled(v) && !p.inMount(v) && !p.aboveMounts(v) {
				return false
			}
		}
	}
	return true
}

// environment builds a call's environment of what every call has, the kind of its terminal, the
// variables of caches, the set that the operator declared, and what the caller adds. The caller
// can't replace the operator's.
func environment(added, caches, declared []string, tty *vocabulary.TTY) ([]string, error) {
	if len(added)+len(caches)+len(declared) == 0 && tty == nil {
		return baseEnv(), nil
	}
	env := make(map[string]string)
	for _, e := range builtEnv(tty) {
		env[capsule.Name(e)] = e
	}
	for _, name := range caches {
		for _, e := range isolate.CacheVariables(name) {
			env[capsule.Name(e)] = e
		}
	}
	seen := make(map[string]bool)
	for i, e := range slices.Concat(declared, added) {
		name, _, ok := strings.Cut(e, "=")
		operators := i < len(declared)
		op := fmt.Sprintf("set environment %q", clip(name))
		switch {
		case !ok:
			return nil, usage("invalid_input", op, fmt.Errorf("not of the form NAME=VALUE"))
		case !validName(name):
			return nil, usage("invalid_input", op, fmt.Errorf("a name is letters, digits and _, and does not begin with a digit"))
		case seen[name] && slices.ContainsFunc(declared, func(d string) bool { return capsule.Name(d) == name }) && !operators:
			return nil, usage("invalid_input", op, fmt.Errorf("the operator declared it for the workspace")).
				WithHint("leave it out, or do without all that is declared: \"bare\": true")
		case seen[name]:
			return nil, usage("invalid_input", op, fmt.Errorf("set twice"))
		case tty != nil && strings.HasPrefix(e, termPrefix):
			return nil, usage("invalid_input", op, fmt.Errorf("it is that of the call's terminal"))
		case matchesName(loaderNames, name), !operators && refusedName(name):
			return nil, usage("invalid_input", op, fmt.Errorf("it makes programs load code or configuration")).
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
	return matchesName(loaderNames, name) || matchesName(refusedNames, name)
}

func matchesName(list []string, name string) bool {
	return slices.ContainsFunc(list, func(r string) bool {
		if p, open := strings.CutSuffix(r, "*"); open {
			return strings.HasPrefix(name, p)
		}
		if s, open := strings.CutPrefix(r, "*"); open {
			return strings.HasSuffix(name, s)
		}
		return r == name
	})
}

// clip bounds a foreign name for a message.
func clip(s string) string {
	if len(s) > 64 {
		return s[:64] + "..."
	}
	return s
}
