package isolate

import (
	"errors"
	"strings"

	"palyra/internal/fault"
)

// Caches are folders that a program of tier C fills, for later calls. Package cache keeps them.
const (
	CacheRoot  = "/caches" // holds those of a call, as its program sees them
	CacheBytes = 4 << 30   // a call that finds or makes one larger is killed
	CacheFiles = 1 << 18
	MaxCaches  = 8 // of one call

	// CacheHome is the name of the cache that programs have as HOME, CacheTmp of the one that is
	// their /tmp. Both belong to one session besides.
	CacheHome = "home"
	CacheTmp  = "tmp"
	tmpPath   = "/tmp"

	maxCacheName = 32 // bytes
)

// CachePath is where a program of tier C sees a cache.
func CachePath(name string) string {
	if name == CacheTmp {
		return tmpPath
	}
	return CacheRoot + "/" + name
}

// OfSession reports whether a cache of that name belongs to a session.
func OfSession(name string) bool { return name == CacheHome || name == CacheTmp }

// cacheVariables are those by which programs find their cache, by its name. Go's is also where it
// builds: in a private /tmp a large build finds no room.
var cacheVariables = map[string][]string{"go": {"GOCACHE", "GOTMPDIR"}, "npm": {"npm_config_cache"}, "pip": {"PIP_CACHE_DIR"}, CacheHome: {"HOME"}}

// CacheVariables returns "NAME=VALUE" of the variables for a cache of a name that some program is
// known to have, else none.
func CacheVariables(name string) (env []string) {
	for _, v := range cacheVariables[name] {
		env = append(env, v+"="+CachePath(name))
	}
	return env
}

// CheckCache returns a fault unless a cache can have a name: 1 to 32 of a-z, 0-9 and -.
func CheckCache(name string) error {
	if name == "" || len(name) > maxCacheName || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" || name[0] == '-' {
		return fault.New(fault.Usage, "invalid_input", "check name of cache", errors.New("want 1 to 32 of a-z, 0-9 and -, not - first"))
	}
	return nil
}
