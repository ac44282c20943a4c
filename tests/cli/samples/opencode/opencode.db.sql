CREATE TABLE `session` (
  `id` text PRIMARY KEY,
  `project_id` text NOT NULL,
  `workspace_id` text,
  `parent_id` text,
  `slug` text NOT NULL,
  `directory` text NOT NULL,
  `path` text,
  `title` text NOT NULL,
  `version` text NOT NULL,
  `share_url` text,
  `summary_additions` integer,
  `summary_deletions` integer,
  `summary_files` integer,
  `summary_diffs` text,
  `metadata` text,
  `cost` real DEFAULT 0 NOT NULL,
  `tokens_input` integer DEFAULT 0 NOT NULL,
  `tokens_output` integer DEFAULT 0 NOT NULL,
  `tokens_reasoning` integer DEFAULT 0 NOT NULL,
  `tokens_cache_read` integer DEFAULT 0 NOT NULL,
  `tokens_cache_write` integer DEFAULT 0 NOT NULL,
  `revert` text,
  `permission` text,
  `agent` text,
  `model` text,
  `time_created` integer NOT NULL,
  `time_updated` integer NOT NULL,
  `time_compacting` integer,
  `time_archived` integer
  );
INSERT INTO session VALUES ('ses_df1b9d2d6ffe0BdgxSX7jDdpPD', 'global', NULL, NULL, 'neon-squid', '/home/ann/shop', '/home/ann/shop', 'Noted: the staging database uses port 5433.', '1.18.33', NULL, 0, 0, 0, NULL, NULL, 0.0, 0, 0, 0, 0, 0, NULL, '[{"permission":"question","pattern":"*","action":"deny"},{"permission":"plan_enter","pattern":"*","action":"deny"},{"permission":"plan_exit","pattern":"*","action":"deny"}]', 'build', '{"id":"fake-model","providerID":"fake","variant":"default"}', 1795535809834, 1795535827599, NULL, NULL);
CREATE TABLE `message` (
  `id` text PRIMARY KEY,
  `session_id` text NOT NULL,
  `time_created` integer NOT NULL,
  `time_updated` integer NOT NULL,
  `data` text NOT NULL
  );
INSERT INTO message VALUES ('msg_20e462e98001gg1gN7XshKBDKQ', 'ses_df1b9d2d6ffe0BdgxSX7jDdpPD', 1795535810200, 1795535813838, '{"role":"user","time":{"created":1795535810200},"agent":"build","model":{"providerID":"fake","modelID":"fake-model"},"summary":{"diffs":[]}}');
INSERT INTO message VALUES ('msg_20e463bd7001uwiSkDX1Jr6yk7', 'ses_df1b9d2d6ffe0BdgxSX7jDdpPD', 1795535813591, 1795535816063, '{"parentID":"msg_20e462e98001gg1gN7XshKBDKQ","role":"assistant","mode":"build","agent":"build","path":{"cwd":"/home/ann/shop","root":"/"},"cost":0,"tokens":{"input":0,"output":0,"reasoning":0,"cache":{"write":0,"read":0}},"modelID":"fake-model","providerID":"fake","time":{"created":1795535813591,"completed":1795535816062},"finish":"stop"}');
INSERT INTO message VALUES ('msg_20e466513001Fpd3iwaM2aGQ07', 'ses_df1b9d2d6ffe0BdgxSX7jDdpPD', 1795535824147, 1795535827104, '{"role":"user","time":{"created":1795535824147},"agent":"build","model":{"providerID":"fake","modelID":"fake-model"},"summary":{"diffs":[]}}');
INSERT INTO message VALUES ('msg_20e466ece001m75uL36EGumN0z', 'ses_df1b9d2d6ffe0BdgxSX7jDdpPD', 1795535826638, 1795535827511, '{"parentID":"msg_20e466513001Fpd3iwaM2aGQ07","role":"assistant","mode":"build","agent":"build","path":{"cwd":"/home/ann/shop","root":"/"},"cost":0,"tokens":{"input":0,"output":0,"reasoning":0,"cache":{"write":0,"read":0}},"modelID":"fake-model","providerID":"fake","time":{"created":1795535826638,"completed":1795535827510},"finish":"stop"}');
CREATE TABLE `part` (
  `id` text PRIMARY KEY,
  `message_id` text NOT NULL,
  `session_id` text NOT NULL,
  `time_created` integer NOT NULL,
  `time_updated` integer NOT NULL,
  `data` text NOT NULL
  );
INSERT INTO part VALUES ('prt_20e462ec3001Sw5fhagjeyGoK0', 'msg_20e462e98001gg1gN7XshKBDKQ', 'ses_df1b9d2d6ffe0BdgxSX7jDdpPD', 1795535813535, 1795535813549, '{"type":"text","text":"The staging database of the shop listens on port 5433, remember that"}');
INSERT INTO part VALUES ('prt_20e46456a001yztAxqz280KYJH', 'msg_20e463bd7001uwiSkDX1Jr6yk7', 'ses_df1b9d2d6ffe0BdgxSX7jDdpPD', 1795535816042, 1795535816044, '{"type":"step-start"}');
INSERT INTO part VALUES ('prt_20e46456e001T3i6USIdHzoke9', 'msg_20e463bd7001uwiSkDX1Jr6yk7', 'ses_df1b9d2d6ffe0BdgxSX7jDdpPD', 1795535816046, 1795535816049, '{"type":"text","text":"Noted: the staging database uses port 5433.","time":{"start":1795535816046,"end":1795535816049}}');
INSERT INTO part VALUES ('prt_20e464573001oWFV2xFj4oas4y', 'msg_20e463bd7001uwiSkDX1Jr6yk7', 'ses_df1b9d2d6ffe0BdgxSX7jDdpPD', 1795535816053, 1795535816054, '{"reason":"stop","type":"step-finish","tokens":{"input":0,"output":0,"reasoning":0,"cache":{"write":0,"read":0}},"cost":0}');
INSERT INTO part VALUES ('prt_20e46651d001D3yUiK5gSp79Fw', 'msg_20e466513001Fpd3iwaM2aGQ07', 'ses_df1b9d2d6ffe0BdgxSX7jDdpPD', 1795535826610, 1795535826612, '{"type":"text","text":"Which port was it again?"}');
INSERT INTO part VALUES ('prt_20e4671c1001jZqRudFDJT563N', 'msg_20e466ece001m75uL36EGumN0z', 'ses_df1b9d2d6ffe0BdgxSX7jDdpPD', 1795535827393, 1795535827408, '{"type":"step-start"}');
INSERT INTO part VALUES ('prt_20e4671d2001s0kO2VmulZRgBA', 'msg_20e466ece001m75uL36EGumN0z', 'ses_df1b9d2d6ffe0BdgxSX7jDdpPD', 1795535827410, 1795535827462, '{"type":"text","text":"It was port 5433.","time":{"start":1795535827410,"end":1795535827450}}');
INSERT INTO part VALUES ('prt_20e46720c0016muaIVQ2L0Mmom', 'msg_20e466ece001m75uL36EGumN0z', 'ses_df1b9d2d6ffe0BdgxSX7jDdpPD', 1795535827468, 1795535827486, '{"reason":"stop","type":"step-finish","tokens":{"input":0,"output":0,"reasoning":0,"cache":{"write":0,"read":0}},"cost":0}');
INSERT INTO part VALUES ('prt_20e466520001', 'msg_20e466513001Fpd3iwaM2aGQ07', 'ses_df1b9d2d6ffe0BdgxSX7jDdpPD', 1795535826611, 1795535826612, '{"type":"text","text":"Called the Read tool","synthetic":true}');
