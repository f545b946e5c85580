package stage

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"palyra/internal/fault"
)

// Folder is the folder of the state directory that has the layers.
const Folder = "layers"

// CheckName refuses what can't be the name of a layer.
func CheckName(name string) error {
	const may = "abcdefghijklmnopqrstuvwxyz0123456789-"
	if name == "" || len(name) > 64 || name[0] == '-' || strings.Trim(name, may) != "" {
		return fault.New(fault.Usage, "invalid_input", "name a layer", fmt.Errorf("%q: want 1 to 64 of a-z, 0-9 and -", name))
	}
	return nil
}

// Source is the workspace that a layer lies over.
type Source struct {
	Path string `json:"path"` // on the host, links resolved
	UID  uint32 `json:"uid"`  // its owner, who owns what is in the layer
	GID  uint32 `json:"gid"`
}

// Info describes a layer; it's the content of its layer.json.
type Info struct {
	Version int       `json:"version"`
	Name    string    `json:"name"`
	Source  Source    `json:"source"`
	Made    time.Time `json:"made"`
}

// Busy is the error for a layer that another call uses.
func Busy(name string) error {
	return fault.New(fault.Busy, "locked", fmt.Sprintf("use layer %q", name), errors.New("a call uses it")).
		WithHint("wait for the call's end, or use a layer of another name")
}

// ErrNoLayer marks the error for a name that no layer has.
var ErrNoLayer = errors.New("no such layer")
