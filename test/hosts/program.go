package hosts

import (
	"os"
	"syscall"
)

// WriteProgram writes a program or script that is to be run. Nobody forks meanwhile:
// a child that is begun just then holds the file open for writing until it has become
// another program, and what is open for writing cannot be run ("text file busy").
func WriteProgram(path, text string) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return os.WriteFile(path, []byte(text), 0o755)
}
