// Package mountinfo reads the mount table of the process. It does not access the mounted file systems, which may not
// respond.
package mountinfo
