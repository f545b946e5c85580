//go:build !linux

package stage

import (
	"context"
	"io"
	"io/fs"
	"os"
)

// Layer is a layer that this process has locked. Here there are none.
type Layer struct {
	Info
	Limits Limits
}

// Take needs overlayfs, which is Linux's.
func Take(string, string, Source, fs.FileMode) (*Layer, error) {
	return nil, unsupported("use a layer")
}

// Shared needs a layer that Take made.
func (l *Layer) Shared(Source) error { return unsupported("use a layer") }

// Open needs a layer that Take made.
func Open(string, string) (*Layer, error) { return nil, unsupported("use a layer") }

// Names returns the names of the layers: none.
func Names(string) ([]string, error) { return []string{}, nil }

// Describe needs a layer that Take made.
func Describe(string, string) (Info, error) { return Info{}, unsupported("read a layer") }

// Dir is the layer's folder.
func (l *Layer) Dir() *os.File { return nil }

// Discard removes a layer.
func Discard(string, string, bool) error { return unsupported("discard a layer") }

// Read lists the layer's changes.
func (l *Layer) Read(context.Context, Limits) (*List, error) { return nil, unsupported("read a layer") }

// Patch writes a list as a patch.
func (l *Layer) Patch(context.Context, io.Writer, *List, bool) ([]Skipped, error) {
	return nil, unsupported("write patch")
}

// Empty reports whether nothing was ever written to the layer.
func (l *Layer) Empty() bool { return true }

// Applied reports whether there is something to undo.
func (l *Layer) Applied() bool { return false }

// Touches reports whether the layer has something of its own at a path of the workspace.
func (l *Layer) Touches(string) (bool, error) { return false, unsupported("read a layer") }

// Remove removes the layer.
func (l *Layer) Remove() error { return unsupported("discard a layer") }

// Close unlocks the layer.
func (l *Layer) Close() error { return nil }

// Size needs a layer that Take made.
func Size(string, string) (int64, bool, error) { return 0, false, unsupported("measure a layer") }

// Size returns nothing.
func (l *Layer) Size() (int64, bool) { return 0, false }

// Upper needs a layer that Take made.
func (l *Layer) Upper() string { return "" }

// OpenUnfinished needs a layer that Take made.
func OpenUnfinished(string, string) (*Layer, *Effect, error) {
	return nil, nil, unsupported("use a layer")
}

// Prepare reads the layer's changes with their content.
func (l *Layer) Prepare(context.Context) (*Effect, error) { return nil, unsupported("read a layer") }

// PrepareUndo reads the list that takes back what was applied last.
func (l *Layer) PrepareUndo(context.Context) (*Effect, error) {
	return nil, unsupported("read a layer")
}

// Undo reads the list that takes back what was applied last.
func (l *Layer) Undo() (*List, error) { return nil, unsupported("read a layer") }

// Begin records that a list is about to be brought to the workspace.
func (l *Layer) Begin(context.Context, *Effect) error { return unsupported("use a layer") }

// End records what became of the list.
func (l *Layer) End(bool) error { return unsupported("use a layer") }
