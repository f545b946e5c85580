package serve

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/internal/sys"
	"palyra/isolate/tier"
)

// enter opens the folder that the program starts in and returns a descriptor for the tape. dir
// is the workspace: at tier C the mount that the cell will have.
//
// A writer of the workspace controls the paths below it. By now one may lead to another folder,
// or be a link to any file that the process following it has open. So enter looks the path up
// beneath dir, through no link, and requires the folder that was sealed. The child gets the
// descriptor and looks nothing up.
func (r *run) enter(dir int) (int, error) {
	op := fmt.Sprintf("enter directory %q", r.spec.Cwd)
	if r.spec.CwdInode == "" {
		var err error
		if r.cwd, err = sys.PlaceOf(dir); err != nil {
			return -1, fault.New(fault.Internal, "internal", op, err)
		}
		return dir, nil
	}
	rel, _ := strings.CutPrefix(r.spec.Cwd, workspaceName(r.spec)+"/")
	changed := fault.New(fault.Usage, "changed", op, errors.New("it is not the directory that was sealed"))
	if r.lower != nil {
		// An overlay has inodes of its own: the sealed folder is the one below it. In the
		// layer an earlier call may have put another in its place, which is the layer's.
		below, err := sys.FolderBeneath(int(r.lower.Fd()), rel)
		if err != nil {
			return -1, fault.New(fault.Usage, "changed", op, err)
		}
		defer below.Close()
		if at, err := sys.PlaceOf(int(below.Fd())); err != nil || isolate.Inode(at.Inode.Dev, at.Inode.Ino) != r.spec.CwdInode {
			return -1, changed
		}
	}
	f, err := sys.FolderBeneath(dir, rel)
	switch {
	case errors.Is(err, fs.ErrPermission):
		return -1, fault.New(fault.Usage, "invalid_input", op, err)
	case err != nil:
		return -1, fault.New(fault.Usage, "changed", op, err)
	}
	r.hold(f)
	if r.cwd, err = sys.PlaceOf(int(f.Fd())); err != nil {
		return -1, fault.New(fault.Internal, "internal", op, err)
	}
	if i := r.cwd.Inode; r.lower == nil && isolate.Inode(i.Dev, i.Ino) != r.spec.CwdInode {
		return -1, changed
	}
	fd, err := r.raiseFile(f)
	if err != nil {
		return -1, fault.New(fault.Unavailable, "resource_exhausted", "prepare cell", err)
	}
	return fd, nil
}

// workspaceName is the prefix of the call's paths. The private workspace of tier B has only the
// name that the Spec gives it.
func workspaceName(spec *isolate.Spec) string {
	switch {
	case spec.Tier != tier.B:
		return spec.Workspace.View()
	case spec.Workspace == nil:
		return spec.Cwd
	}
	return spec.Workspace.Source
}

// checkCwdNamed requires a sealed working directory to be in the workspace, and any other to be
// the workspace itself.
func checkCwdNamed(spec *isolate.Spec) error {
	top := workspaceName(spec)
	sealed := spec.CwdInode != ""
	switch {
	case sealed && (spec.Workspace == nil || !strings.HasPrefix(spec.Cwd, top+"/")):
		return fmt.Errorf("working directory %q is in no workspace of the call", spec.Cwd)
	case !sealed && spec.Cwd != top:
		return fmt.Errorf("nothing says which folder %q is", spec.Cwd)
	}
	return nil
}

// checkCwd requires the waiting process to be in the tape's folder, on its mount. dir is the
// process's folder of proc.
func (p *process) checkCwd(dir int) error {
	at, err := sys.WorkingPlace(dir)
	if err != nil {
		return err
	}
	if at != p.cwd {
		return fmt.Errorf("its working directory is inode %s on mount %d, not %s on %d", isolate.Inode(at.Inode.Dev, at.Inode.Ino), at.Mount,
			isolate.Inode(p.cwd.Inode.Dev, p.cwd.Inode.Ino), p.cwd.Mount)
	}
	return nil
}
