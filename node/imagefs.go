package node

import "berth/node/pressure"

// ReadImageLevels returns the levels of the eviction signals that an image pull affects, and the free
// bytes of the image file system. imagesDir is a directory on the image file system, rootDir one on
// nodefs, whose levels are included if both are on the same file system.
func ReadImageLevels(rootDir, imagesDir string) (levels map[pressure.Signal]pressure.Level, free uint64, err error) {
	disk, err := ReadDisk(imagesDir)
	if err != nil {
		return nil, 0, err
	}
	bytes := pressure.Level{Available: int64(disk.Available), Capacity: int64(disk.Capacity)}
	inodes := pressure.Level{Available: int64(disk.InodesFree), Capacity: int64(disk.Inodes)}
	nodefs := SameFileSystem(rootDir, imagesDir)
	levels = map[pressure.Signal]pressure.Level{pressure.ImagefsAvailable: bytes}
	if nodefs {
		levels[pressure.NodefsAvailable] = bytes
	}
	if disk.Inodes > 0 {
		levels[pressure.ImagefsInodesFree] = inodes
		if nodefs {
			levels[pressure.NodefsInodesFree] = inodes
		}
	}
	return levels, disk.Available, nil
}
