// Package pair tests the control server together with a joined agent, on real containerd, with
// stock kubectl.
package pair
