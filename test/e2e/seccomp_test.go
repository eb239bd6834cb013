package e2e

import (
	"os"
	"path/filepath"
)

// writeSeccomp writes a seccomp profile that denies mkdir to the node.
func (n *Node) writeSeccomp() error {
	dir := filepath.Join(n.Agent.RootDir, "seccomp", "profiles")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	text := `{"defaultAction": "SCMP_ACT_ALLOW", "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_AARCH64"],
		"syscalls": [{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1}]}`
	return os.WriteFile(filepath.Join(dir, "no-mkdir.json"), []byte(text), 0o644)
}
