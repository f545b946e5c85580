package isolate

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"palyra/call"
	"palyra/isolate/tier"
)

// taken are the top-level names at which a cell of tier C has files of its own, or the system's,
// and those at which programs expect the kernel's.
var taken = []string{"bin", "caches", "dev", "etc", "lib", "lib32", "lib64", "libx32", "proc", "sbin", "sys", "tmp", "usr", "workspace"}

// maxPlace bounds a place in bytes, so that programs can name files in it (PATH_MAX).
const maxPlace = 3072

// CheckPlace returns an error unless a cell of tier C can show a folder of the host at a path.
func CheckPlace(at string) error {
	top, _, _ := strings.Cut(strings.TrimPrefix(at, "/"), "/")
	switch {
	case !path.IsAbs(at) || path.Clean(at) != at || strings.IndexByte(at, 0) >= 0:
		return fmt.Errorf("%q is not a plain absolute path", at)
	case at == "/":
		return errors.New("it is the root directory")
	case len(at) > maxPlace:
		return fmt.Errorf("it has %d bytes, at most %d", len(at), maxPlace)
	case slices.Contains(taken, top):
		return fmt.Errorf("the cell has a /%s of its own", top)
	}
	return nil
}

// MaxMounts is how many mounts a call has at most.
const MaxMounts = 16

// CheckPlaces returns an error unless a call of that tier can see its workspace, which may be
// nil, its mounts and its caches: sorted, each at a place that no other lies in.
func CheckPlaces(t tier.Tier, w *Mount, mounts []call.Mount, caches []string) error {
	ownPath := w != nil && w.OwnPath
	switch {
	case t != tier.C && (ownPath || len(mounts) > 0):
		return fmt.Errorf("tier %v has no mounts, and shows a workspace at its own path alone", t)
	case len(mounts) > MaxMounts:
		return fmt.Errorf("%d mounts, at most %d", len(mounts), MaxMounts)
	}
	if len(caches) > 0 {
		if err := checkCaches(t, w, caches); err != nil {
			return err
		}
	}
	var places []string
	for i, m := range mounts {
		if i > 0 && mounts[i-1].Source >= m.Source {
			return errors.New("mounts are not sorted, or one is given twice")
		}
		places = append(places, m.Source)
	}
	if ownPath {
		places = append(places, w.Source)
	}
	for i, at := range places {
		if err := CheckPlace(at); err != nil {
			return fmt.Errorf("%q: %w", at, err)
		}
		for _, other := range places[:i] {
			if at == other || strings.HasPrefix(at, other+"/") || strings.HasPrefix(other, at+"/") {
				return fmt.Errorf("%q and %q lie in each other", other, at)
			}
		}
	}
	return nil
}

func checkCaches(t tier.Tier, w *Mount, names []string) error {
	switch {
	case t != tier.C:
		return fmt.Errorf("tier %v has no caches", t)
	case w == nil:
		return errors.New("a cache belongs to a workspace")
	case len(names) > MaxCaches:
		return fmt.Errorf("%d caches, at most %d", len(names), MaxCaches)
	}
	for i, name := range names {
		if err := CheckCache(name); err != nil {
			return err
		}
		if i > 0 && names[i-1] >= name {
			return errors.New("caches are not sorted, or one is given twice")
		}
	}
	return nil
}
