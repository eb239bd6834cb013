// Package systemd holds no code: its tests take berth through an operator's
// year on a host of test/nspawn, with the commands of docs/install.md. Installed,
// configured, crashed, hung, upgraded, rebooted, without power, and away again:
// no container is restarted that need not be, and nothing remains. And once more
// by the Debian packages. And a host on which nothing was done follows
// docs/operate.md by its own lines.
package systemd
