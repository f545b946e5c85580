package sys

// maxMeasured bounds the folders within each other that TreeSize looks into: each holds a
// descriptor.
const maxMeasured = 200

// TreeSize returns the space that the folder name of dir takes with all its content, in bytes, as
// far as it could be seen, and follows no link. A program can keep us from looking into a folder,
// or nest too many; then whole is false.
func TreeSize(dir int, name string) (bytes int64, whole bool) {
	whole = true
	buf := make([]byte, 8<<10)
	var look func(dir int, name string, nested int)
	look = func(dir int, name string, nested int) {
		fd, err := OpenBeneath(dir, name)
		if err != nil || nested == 0 {
			if err == nil {
				Close(fd)
			}
			whole = false
			return
		}
		defer Close(fd)
		for {
			names, err := NextNames(fd, buf)
			whole = whole && err == nil
			if err != nil || len(names) == 0 {
				return
			}
			for _, name := range names {
				n, folder, err := Allocated(fd, name)
				if err != nil {
					whole = false
					continue
				}
				if bytes += n; folder {
					look(fd, name, nested-1)
				}
			}
		}
	}
	look(dir, name, maxMeasured)
	return bytes, whole
}
