package volumes

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"berth/agent/plan"
)

// maxEnvFile limits the size of a file with variables. The whole environment of a container must
// fit into the arguments of execve.
const maxEnvFile = 1 << 20

// EnvFiles reads the files that a container's environment references. The pod can write to their
// volumes, so symbolic links that lead out of the volume are not followed, and only regular files
// are opened.
func (v *Volumes) EnvFiles(pod *corev1.Pod, c *corev1.Container) plan.EnvFiles {
	var files plan.EnvFiles
	for i := range c.Env {
		from := c.Env[i].ValueFrom
		if from == nil || from.FileKeyRef == nil {
			continue
		}
		file := plan.EnvFile{Volume: from.FileKeyRef.VolumeName, Path: from.FileKeyRef.Path}
		if _, read := files[file]; read {
			continue
		}
		if files == nil {
			files = plan.EnvFiles{}
		}
		files[file] = v.envFile(pod, file)
	}
	return files
}

func (v *Volumes) envFile(pod *corev1.Pod, file plan.EnvFile) plan.EnvFileContent {
	vol := volumeOf(pod, file.Volume)
	if vol == nil || vol.EmptyDir == nil {
		return plan.EnvFileContent{Err: "the pod has no such emptyDir"}
	}
	if err := checkSubPath(file.Path); err != nil {
		return plan.EnvFileContent{Err: err.Error()}
	}
	content, err := readBeneath(v.volumeDir(pod.UID, emptyDir, vol.Name), file.Path)
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		return plan.EnvFileContent{Missing: true}
	case errors.Is(err, unix.EXDEV), errors.Is(err, unix.ELOOP):
		return plan.EnvFileContent{Err: "path leads out of the volume"}
	case err != nil:
		return plan.EnvFileContent{Err: err.Error()}
	}
	return plan.EnvFileContent{Content: content}
}

// readBeneath reads a regular file of a volume.
func readBeneath(root, path string) (string, error) {
	dir, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(dir)
	fd, err := openBeneath(dir, path)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return "", err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return "", errors.New("not a regular file")
	}
	f, err := os.Open(fdPath(fd)) // the same file that was checked
	if err != nil {
		return "", err
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, maxEnvFile+1))
	if err == nil && len(raw) > maxEnvFile {
		err = fmt.Errorf("larger than %d bytes", maxEnvFile)
	}
	return string(raw), err
}
